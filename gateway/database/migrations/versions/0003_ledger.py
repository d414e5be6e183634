"""The usage ledger: rows, sums by hour and day, and the stored position of each journal."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MEASURES = (
    "requests",
    "failed",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "cost",
    "duration_ms",
    "ttft_ms",
    "ttft_count",
)


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "usage",
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("organisation", sa.String(64), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("asked", sa.String(200), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("worker", sa.String(64)),
        sa.Column("surface", sa.String(64), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("ttft_ms", sa.BigInteger),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("user", sa.String(256)),
        sa.Column("tags", sa.JSON),
    )
    op.create_index("ix_usage_tenant_at_ms", "usage", ["tenant", "at_ms"])
    for name in ("usage_hours", "usage_days"):
        op.create_table(
            name,
            sa.Column("start_ms", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("tenant", sa.String(64), primary_key=True),
            sa.Column("model", sa.String(200), primary_key=True),
            sa.Column("key_id", sa.String(64), primary_key=True),
            sa.Column("organisation", sa.String(64), primary_key=True),
            *(sa.Column(measure, sa.BigInteger, nullable=False) for measure in MEASURES),
        )
    op.create_table(
        "usage_journals",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("hook", sa.String(64), primary_key=True),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_ms", sa.BigInteger, index=True),
        sa.Column("ended_ms", sa.BigInteger, index=True),
        sa.Column("said", sa.String(200)),
    )


def downgrade() -> None:
    """Undo the migration."""
    for table in ("outbox", "usage_journals", "usage_days", "usage_hours", "usage"):
        op.drop_table(table)
