"""Exports the ledger's rows as CSV, JSON lines or Parquet, page by page, so that they need not fit into memory."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from gateway.ledger.usage_query_parsing import moment_text

COLUMNS: Mapping[str, str] = {
    "request_id": "string",
    "attempt": "int32",
    "at": "string",
    "at_ms": "int64",
    "organisation": "string",
    "tenant": "string",
    "key_id": "string",
    "asked": "string",
    "model": "string",
    "worker": "string",
    "surface": "string",
    "prompt_tokens": "int64",
    "cached_tokens": "int64",
    "output_tokens": "int64",
    "cost": "int64",
    "ttft_ms": "int64",
    "duration_ms": "int64",
    "status": "int32",
    "code": "string",
    "user": "string",
    "tags": "string",
}
"""The columns of an export, with their types as Arrow names them."""

Rows = Sequence[Mapping[str, Any]]


class ParquetMissing(Exception):
    """The package pyarrow is not installed."""


class Export(Protocol):
    """Writes rows to a file until it is closed."""

    def write(self, rows: Rows) -> None:
        """Write some rows."""
        ...

    def close(self) -> None:
        """Write what is buffered, and end the file."""
        ...


class CsvExport:
    """Writes CSV with a header line.

    Texts that a spreadsheet would take for formulas are quoted, since clients choose them.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._csv = csv.writer(_TextToBytes(file))
        self._csv.writerow(COLUMNS)

    def write(self, rows: Rows) -> None:
        """Write some rows."""
        for row in rows:
            self._csv.writerow([_cell(value) for value in _flat(row).values()])

    def close(self) -> None:
        """Flush the file."""
        self._file.flush()


class JsonExport:
    """Writes one JSON object per line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rows: Rows) -> None:
        """Write some rows."""
        for row in rows:
            flat = {**_flat(row), "tags": row["tags"] or {}}
            self._file.write(json.dumps(flat, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        """Flush the file."""
        self._file.flush()


class ParquetExport:
    """Writes Parquet. The constructor raises ParquetMissing."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError as err:
            raise ParquetMissing("pyarrow is not installed; pip install 'radixgate[parquet]'") from err
        fields = [(name, getattr(pyarrow, kind)()) for name, kind in COLUMNS.items()]
        self._arrow = pyarrow
        self._schema = pyarrow.schema(fields)
        self._writer = parquet.ParquetWriter(file, self._schema)

    def write(self, rows: Rows) -> None:
        """Write some rows as a row group."""
        table = self._arrow.Table.from_pylist([_flat(row) for row in rows], schema=self._schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


FORMATS: Mapping[str, Callable[[IO[bytes]], Export]] = {
    "csv": CsvExport,
    "json": JsonExport,
    "parquet": ParquetExport,
}


class _TextToBytes:
    """A file for the csv module, which encodes its text to bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode())


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row in the order of COLUMNS, with its tags as JSON."""
    tags = json.dumps(row["tags"], ensure_ascii=False, sort_keys=True) if row["tags"] else None
    more = {"at": moment_text(row["at_ms"]), "tags": tags}
    return {name: more[name] if name in more else row[name] for name in COLUMNS}


def _cell(value: Any) -> Any:
    """Quote texts that a spreadsheet would take for formulas, as OWASP advises."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
