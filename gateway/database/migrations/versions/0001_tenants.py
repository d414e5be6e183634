"""Organisations, plans, tenants, keys, and the number of their last change."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    changes = op.create_table(
        "changes",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(changes, [{"id": 1, "number": 0}])
    op.create_table(
        "organisations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("limits", sa.Text),
        sa.Column("concurrency", sa.BigInteger),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "plans",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("limits", sa.Text),
        sa.Column("concurrency", sa.BigInteger),
        sa.Column("models", sa.Text),
        sa.Column("context_length_max", sa.BigInteger),
        sa.Column("changed", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("organisation", sa.String(64), sa.ForeignKey("organisations.id"), index=True),
        sa.Column("plan", sa.String(200), sa.ForeignKey("plans.name"), index=True),
        sa.Column("isolation", sa.Text),
        sa.Column("models", sa.Text),
        sa.Column("addresses", sa.Text),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("hash", sa.String(80), nullable=False, unique=True),
        sa.Column("name", sa.String(200)),
        sa.Column("family", sa.String(64)),
        sa.Column("scopes", sa.Text),
        sa.Column("models", sa.Text),
        sa.Column("addresses", sa.Text),
        sa.Column("limits", sa.Text),
        sa.Column("concurrency", sa.BigInteger),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger),
        sa.Column("revoked_ms", sa.BigInteger),
        sa.Column("changed", sa.BigInteger, nullable=False, index=True),
    )


def downgrade() -> None:
    """Undo the migration."""
    for table in ("keys", "tenants", "plans", "organisations", "changes"):
        op.drop_table(table)
