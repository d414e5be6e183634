"""The oldest version whose code serves on the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "compatibility",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("oldest_code", sa.String(32), nullable=False),
    )


def downgrade() -> None:
    """Undo the migration."""
    op.drop_table("compatibility")
