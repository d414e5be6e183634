"""Limits of tenants, context lengths by model, a bound on cached blocks, and the behaviour without Redis."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BOTH = (
    ("context_lengths", sa.Text),
    ("cache_blocks_max", sa.BigInteger),
    ("without_redis", sa.String(16)),
)
OF_TENANTS = (("limits", sa.Text), ("concurrency", sa.BigInteger), ("context_length_max", sa.BigInteger))


def upgrade() -> None:
    """Apply the migration."""
    for name, kind in BOTH:
        op.add_column("plans", sa.Column(name, kind))
    for name, kind in (*OF_TENANTS, *BOTH):
        op.add_column("tenants", sa.Column(name, kind))


def downgrade() -> None:
    """Undo the migration."""
    for name, _ in (*OF_TENANTS, *BOTH):
        op.drop_column("tenants", name)
    for name, _ in BOTH:
        op.drop_column("plans", name)
