"""Indexes of hourly sums by their owner, from which budgets that Redis has lost are restored."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OWNERS = ("organisation", "tenant", "key_id")


def upgrade() -> None:
    """Apply the migration."""
    for owner in OWNERS:
        op.create_index(f"ix_usage_hours_{owner}_start_ms", "usage_hours", [owner, "start_ms"])


def downgrade() -> None:
    """Undo the migration."""
    for owner in OWNERS:
        op.drop_index(f"ix_usage_hours_{owner}_start_ms", "usage_hours")
