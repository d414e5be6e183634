"""Files, batches and their rows."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the migration."""
    op.create_table(
        "files",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("state", sa.String(16), nullable=False),
    )
    op.create_index("ix_files_tenant_created_ms", "files", ["tenant", "created_ms"])
    op.create_table(
        "batches",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("completion_window", sa.String(16), nullable=False),
        sa.Column("input_file", sa.String(64), nullable=False),
        sa.Column("output_file", sa.String(64)),
        sa.Column("error_file", sa.String(64)),
        sa.Column("output_kept_seconds", sa.BigInteger),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("moments", sa.Text, nullable=False),
        sa.Column("errors", sa.Text),
        sa.Column("metadata", sa.Text),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, index=True),
        sa.Column("owner", sa.String(64)),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("lease_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_batches_tenant_created_ms", "batches", ["tenant", "created_ms"])
    op.create_table(
        "batch_rows",
        sa.Column("batch", sa.String(64), primary_key=True),
        sa.Column("row", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("good", sa.Boolean, nullable=False),
        sa.Column("line", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Undo the migration."""
    op.drop_table("batch_rows")
    op.drop_table("batches")
    op.drop_table("files")
