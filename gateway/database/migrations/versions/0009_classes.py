"""Service classes of plans and keys (NULL: none of their own), and names of plans of the settings file."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("plans", sa.Column("classes", sa.Text))
    op.add_column("plans", sa.Column("of_file", sa.Boolean))
    op.add_column("keys", sa.Column("service_class", sa.String(16)))


def downgrade() -> None:
    """Undo the migration."""
    op.drop_column("keys", "service_class")
    op.drop_column("plans", "of_file")
    op.drop_column("plans", "classes")
