"""Whether plans and tenants consent to outside providers; NULL is the default."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("plans", sa.Column("overflow", sa.String(16)))
    op.add_column("tenants", sa.Column("overflow", sa.String(16)))


def downgrade() -> None:
    """Undo the migration."""
    op.drop_column("tenants", "overflow")
    op.drop_column("plans", "overflow")
