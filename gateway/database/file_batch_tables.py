"""The tables of files and batches.

    files        one row for each file; its content is in the content store, under tenant and id
    batches      one row for each batch: what was asked, its status, and the gateway that runs it, by a lease
    batch_rows   one row for each result, until the batch has ended: then they are the lines of its output files

A file is `arriving` until its content is complete, and `gone` until its content is deleted: a gateway that dies in
between leaves a row that leads to what is left. Times are milliseconds since 1970.
"""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, Text

from gateway.database.tables import metadata

files = Table(
    "files",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("name", String(255), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False, index=True),
    Column("state", String(16), nullable=False),
    Index("ix_files_tenant_created_ms", "tenant", "created_ms"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("completion_window", String(16), nullable=False),
    Column("input_file", String(64), nullable=False),
    Column("output_file", String(64)),
    Column("error_file", String(64)),
    Column("output_kept_seconds", BigInteger),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("moments", Text, nullable=False),
    Column("errors", Text),
    Column("metadata", Text),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("ended_ms", BigInteger, index=True),
    Column("owner", String(64)),
    Column("generation", Integer, nullable=False),
    Column("lease_ms", BigInteger, nullable=False),
    Index("ix_batches_tenant_created_ms", "tenant", "created_ms"),
)
"""Batches.

`moments`: JSON, the Unix time in seconds at which the batch came to each status. `owner`: the gateway that runs it
until `lease_ms`. `generation`: raised at each claim; a write under another generation is refused.
"""

batch_rows = Table(
    "batch_rows",
    metadata,
    Column("batch", String(64), primary_key=True),
    Column("row", Integer, primary_key=True, autoincrement=False),
    Column("good", Boolean, nullable=False),
    Column("line", Text, nullable=False),
)
"""Results of batches that have not ended.

`row`: number of the line in the input file, from 0. `line`: the line of the output or error file.
"""
