"""Conversations and their items, each conversation bound to its tenant."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("item_count", sa.Integer, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
    )
    op.create_index("ix_conversations_tenant_changed_ms", "conversations", ["tenant", "changed_ms"])
    op.create_table(
        "conversation_items",
        sa.Column("conversation", sa.String(64), primary_key=True),
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("item", sa.Text, nullable=False),
    )
    op.create_index(
        "ix_conversation_items_conversation_number", "conversation_items", ["conversation", "number"]
    )


def downgrade() -> None:
    """Undo the migration."""
    op.drop_table("conversation_items")
    op.drop_table("conversations")
