"""Checks of database addresses before a connection is made. Needs no database library."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

NONE = "none"
"""The address that means that there is no database."""

SQLITE = "sqlite:///"


def database_url_problem(url: str) -> str | None:
    """Return what is wrong with the address, without quoting secrets in it; None if it is valid."""
    if url == NONE:
        return None
    if url.startswith(SQLITE):
        file = url.removeprefix(SQLITE)
        if file in ("", ":memory:") or file.endswith("/"):
            return "expected the path of a file, such as sqlite:///radixgate.db"
        return "the address of a SQLite file takes no options" if "?" in file else None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "the port is not one of 1 to 65535 (a password's /, @, # and ? are written %2F, %40, %23, %3F)"
    if parts.scheme not in ("postgresql", "postgres"):
        return "expected sqlite:/// or postgresql://"
    if port == 0:
        return "the port is not one of 1 to 65535"
    if not parts.path.strip("/"):
        return "the name of the database is missing; write postgresql://user:password@host:5432/name"
    return None


def sqlite_file(url: str, base: Path) -> Path | None:
    """Return the file of a SQLite address, relative to `base`; None for another kind of database."""
    return base / unquote(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None
