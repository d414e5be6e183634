"""Backup and restore of the tables as a file that fits SQLite and PostgreSQL alike.

    {"radixgate_backup": 1, "revision": "0013"}          gzip, one JSON document a line
    {"table": "tenants", "columns": ["id", ...]}         its rows follow, each as a list
    ["acme", ...]
    {"rows": 1}                                          the last line; a file without it is incomplete

A backup is a snapshot of all tables, taken while gateways serve. It is restored into a database without data, at
the version of the tables from which it was taken, and then upgraded. Stored objects of clients (responses,
conversations, files, batches) are left out unless requested, since they expire, and the contents of files are
elsewhere.
"""

import gzip
from collections.abc import Iterator, Sequence
from typing import IO, Any

import msgspec
from sqlalchemy import JSON, Connection, MetaData, Table, delete, func, insert, select

from gateway.database import schema
from gateway.database.audit_tables import audit, operators
from gateway.database.conversation_tables import conversation_items, conversations
from gateway.database.database import Database, DatabaseDown
from gateway.database.file_batch_tables import batch_rows, batches, files
from gateway.database.tables import (
    REVISION,
    changes,
    keys,
    organisations,
    plans,
    response_events,
    responses,
    tenants,
)
from gateway.database.usage_tables import outbox, usage, usage_days, usage_hours, usage_journals

FORMAT = 1
ROWS_AT_ONCE = 500
LINE_BYTES_MAX = 64 * 1024**2

KEPT_TABLES = tuple(
    table.name
    for table in (
        *(changes, organisations, plans, tenants, keys, operators, audit),
        *(usage, usage_hours, usage_days, usage_journals, outbox),
    )
)
"""Tenants, operators, audit log and ledger, each table after those that it refers to."""

STORED_TABLES = tuple(
    table.name
    for table in (
        *(responses, response_events, conversations, conversation_items),
        *(files, batches, batch_rows),
    )
)
"""The tables of clients' stored objects."""

Document = dict[str, Any] | list[Any]


class BackupInvalid(Exception):
    """A file is not a backup that can be restored here; the text has the reason."""


async def write_backup(database: Database, file: IO[bytes], *, stored: bool = False) -> dict[str, int]:
    """Write a backup, and return the number of rows of each table; `stored`: also what clients have stored.

    Raises DatabaseDown and OSError.
    """
    names = (*KEPT_TABLES, *(STORED_TABLES if stored else ()))
    async with database.snapshot() as connection:
        return await connection.run_sync(_write, file, names)


async def restore_backup(database: Database, file: IO[bytes]) -> dict[str, int]:
    """Restore a backup into a database without data, and return the number of rows of each table.

    Nothing is changed if it fails. Raises BackupInvalid, DatabaseDown and OSError.
    """
    return await schema.change_tables(database, lambda connection: _restore(connection, file))


def _write(connection: Connection, file: IO[bytes], names: Sequence[str]) -> dict[str, int]:
    revision = schema.version_in(connection).revision
    if revision is None:
        raise DatabaseDown("it has no tables yet: there is nothing to back up")
    counts: dict[str, int] = {}
    with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) as packed:
        _write_line(packed, {"radixgate_backup": FORMAT, "revision": revision})
        for table in _tables(connection, names):
            name = str(table.name)
            _write_line(packed, {"table": name, "columns": [str(column.name) for column in table.columns]})
            counts[name] = 0
            asked = select(table).execution_options(yield_per=ROWS_AT_ONCE)
            for row in connection.execute(asked):
                _write_line(packed, list(row))
                counts[name] += 1
        _write_line(packed, {"rows": sum(counts.values())})
    return counts


def _restore(connection: Connection, file: IO[bytes]) -> dict[str, int]:
    documents = _read(file)
    header = next(documents, None)
    if not isinstance(header, dict) or header.get("radixgate_backup") != FORMAT:
        raise BackupInvalid("this is not a backup of radixgate, or one of a later format")
    revision = str(header.get("revision"))
    if revision > REVISION:
        raise BackupInvalid(
            f"it is of version {revision} of the tables, this radixgate has {REVISION}: restore it with a newer one"
        )
    _check_empty(connection)
    schema.migrate(connection, revision)
    counts = _insert_all(connection, documents)
    schema.migrate(connection, REVISION)
    return counts


def _check_empty(connection: Connection) -> None:
    for table in _tables(connection, (*KEPT_TABLES[1:], *STORED_TABLES)):
        count = connection.execute(select(func.count()).select_from(table)).scalar()
        if count:
            raise BackupInvalid(
                f"the database is not empty ({table.name}: {count} rows); restore into a new one"
            )


def _insert_all(connection: Connection, documents: Iterator[Document]) -> dict[str, int]:
    tables = {table.name: table for table in _tables(connection, (*KEPT_TABLES, *STORED_TABLES))}
    connection.execute(delete(tables[changes.name]))
    counts: dict[str, int] = {}
    table, columns, rows = None, [], list[dict[str, Any]]()
    for document in documents:
        if isinstance(document, list):
            if table is None or len(document) != len(columns):
                raise BackupInvalid("it has a row that belongs to no table")
            rows.append(dict(zip(columns, document, strict=True)))
            if len(rows) < ROWS_AT_ONCE:
                continue
        if table is not None:
            counts[table.name] += _insert(connection, table, rows)
            rows = []
        if isinstance(document, dict) and "table" in document:
            table = tables.get(document["table"])
            columns = document["columns"]
            if table is None or set(columns) != {column.name for column in table.columns}:
                raise BackupInvalid(f"its table {document['table']!r} is not that of its version")
            counts[table.name] = 0
        elif isinstance(document, dict):
            if document.get("rows") != sum(counts.values()):
                raise BackupInvalid("it has another number of rows than it says")
            if next(documents, None) is not None:  # Reading on also checks the file's checksum.
                raise BackupInvalid("it continues after its end")
            return counts
    raise BackupInvalid("its end is missing")


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> int:
    if rows:
        connection.execute(insert(table), rows)
    return len(rows)


def _tables(connection: Connection, names: Sequence[str]) -> list[Table]:
    """Return the tables of these names as they are in the database, without those that it does not have."""
    found = MetaData()
    found.reflect(connection, only=lambda name, _: name in names, resolve_fks=False)
    for table in found.tables.values():
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type.none_as_null = True
    return [found.tables[name] for name in names if name in found.tables]


def _write_line(file: gzip.GzipFile, document: Document) -> None:
    file.write(msgspec.json.encode(document) + b"\n")


def _read(file: IO[bytes]) -> Iterator[Document]:
    """Read the documents one by one. Raises BackupInvalid."""
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        try:
            while line := unpacked.readline(LINE_BYTES_MAX + 1):
                if len(line) > LINE_BYTES_MAX:
                    raise BackupInvalid("it has a line that is too long")
                yield msgspec.json.decode(line)
        except (EOFError, gzip.BadGzipFile, msgspec.DecodeError) as err:
            raise BackupInvalid(f"it is damaged or incomplete: {err}") from err
