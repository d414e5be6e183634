"""The weight of a plan in the fair queue; NULL is the default weight."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("plans", sa.Column("weight", sa.Float))


def downgrade() -> None:
    """Undo the migration."""
    op.drop_column("plans", "weight")
