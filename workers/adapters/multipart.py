"""A form (multipart/form-data, RFC 7578) in pieces, as adapters send it: contents go out from where they lie.

    --boundary, head of a part | its content | --boundary, head of the next one | its content | --boundary--

The boundary is drawn for each call, so that no content can have it in it.
"""

import secrets
from collections.abc import Iterable

from workers.adapter import Part
from workers.adapters.body_buffers import Piece, Pieces


def written(parts: Iterable[Part]) -> tuple[str, Pieces]:
    """Content type, and the pieces one after the other."""
    boundary = secrets.token_hex(16)
    pieces: list[Piece] = []
    between = b""
    for part in parts:
        pieces.append(b"%b--%b\r\n%b\r\n" % (between, boundary.encode(), part.head))
        if part.body:
            pieces.append(memoryview(part.body))
        between = b"\r\n"
    return f"multipart/form-data; boundary={boundary}", (
        *pieces,
        b"%b--%b--\r\n" % (between, boundary.encode()),
    )


def text(name: str, value: str) -> Part:
    """A field of the form."""
    return Part(field=name, head=disposition(name), body=value.encode())


def disposition(name: str, file_name: str | None = None) -> bytes:
    """The header that names a part, so that everybody reads the same name in it."""
    line = f'Content-Disposition: form-data; name="{_quoted(name)}"'
    if file_name is not None:
        line += f'; filename="{_quoted(file_name)}"'
    return line.encode("utf-8", "surrogateescape") + b"\r\n"


def _quoted(text: str) -> str:
    return text.translate(_ESCAPED)


_ESCAPED = {ord(char): f"%{ord(char):02X}" for char in '"\\\r\n\0'}
"""As browsers write them: some readers end a name at the first quote, some take a backslash for an escape."""
