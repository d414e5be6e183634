"""Writes a form (multipart/form-data, RFC 7578) as several buffers, so that contents are sent without being copied.

    --boundary, head of a part | its content | --boundary, head of the next one | its content | --boundary--

The boundary is random for each call, so that no content can contain it.
"""

import secrets
from collections.abc import Iterable

from workers.adapter import FormPart
from workers.adapters.body_buffers import Buffer, Buffers


def multipart_buffers(parts: Iterable[FormPart]) -> tuple[str, Buffers]:
    """Return the content type, and the body as consecutive buffers."""
    boundary = secrets.token_hex(16)
    buffers: list[Buffer] = []
    between = b""
    for part in parts:
        buffers.append(b"%b--%b\r\n%b\r\n" % (between, boundary.encode(), part.head))
        if part.body:
            buffers.append(memoryview(part.body))
        between = b"\r\n"
    return f"multipart/form-data; boundary={boundary}", (
        *buffers,
        b"%b--%b--\r\n" % (between, boundary.encode()),
    )


def text_part(name: str, value: str) -> FormPart:
    """Return a form part with a text value."""
    return FormPart(field=name, head=content_disposition(name), body=value.encode())


def content_disposition(name: str, file_name: str | None = None) -> bytes:
    """Return the Content-Disposition line of a part, escaped so that every reader finds the same name in it."""
    line = f'Content-Disposition: form-data; name="{_quoted(name)}"'
    if file_name is not None:
        line += f'; filename="{_quoted(file_name)}"'
    return line.encode("utf-8", "surrogateescape") + b"\r\n"


def _quoted(text: str) -> str:
    return text.translate(_ESCAPED)


_ESCAPED = {ord(char): f"%{ord(char):02X}" for char in '"\\\r\n\0'}
"""The characters that browsers escape, since some parsers end a name at the first quote, or treat a backslash as an
escape."""
