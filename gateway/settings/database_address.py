"""Looks at an address of a database before anything connects to it. Needs no database library."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

NONE = "none"
SQLITE = "sqlite:///"


def database_url_problem(url: str) -> str | None:
    """What is wrong with the address, None if nothing is. Never shows what is in it."""
    if url == NONE:
        return None
    if url.startswith(SQLITE):
        file = url.removeprefix(SQLITE)
        if file in ("", ":memory:") or file.endswith("/"):
            return "expected the path of a file, as sqlite:///radixgate.db"
        return "a file of SQLite takes no options" if "?" in file else None
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
        return "there is no database; write postgresql://user:password@host:5432/name"
    return None


def sqlite_file(url: str, base: Path) -> Path | None:
    """The file of a SQLite address, below `base` where it is relative; None for another database."""
    return base / unquote(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None
