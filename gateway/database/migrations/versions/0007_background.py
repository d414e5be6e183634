"""Responses that run in the background, and their events."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("responses", sa.Column("running_ms", sa.BigInteger))
    op.create_table(
        "response_events",
        sa.Column("response", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Undo the migration."""
    op.drop_table("response_events")
    op.drop_column("responses", "running_ms")
