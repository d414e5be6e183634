"""Stored responses, each bound to its tenant."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "responses",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("response", sa.Text, nullable=False),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("own_from", sa.Integer, nullable=False),
    )
    op.create_index("ix_responses_tenant_created_ms", "responses", ["tenant", "created_ms"])


def downgrade() -> None:
    """Undo the migration."""
    op.drop_table("responses")
