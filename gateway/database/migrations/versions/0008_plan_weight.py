"""A plan's share in the fair queue. NULL: the usual one."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("weight", sa.Float))


def downgrade() -> None:
    op.drop_column("plans", "weight")
