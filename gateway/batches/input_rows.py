"""Rows: the lines of a batch's input file.

{"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions", "body": {..}}
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import msgspec

CUSTOM_ID_MAX = 512
ERRORS_MAX = 100
"""Of one file; who has more knows enough."""


class Line(msgspec.Struct, frozen=True):
    """What has to stand in a line."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


_LINE = msgspec.json.Decoder(Line)


class RowInvalid(Exception):
    """The line is no request of this batch. `param`: the field that is wrong."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`number`: of the line in its file, from 0."""

    number: int
    custom_id: str
    body: bytes


async def lines(pieces: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[tuple[int, bytes]]:
    """Those that are not blank, with their numbers. One that is too long is cut, one byte too late."""
    held: list[bytes] = []
    size = number = 0
    async for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for end in ended:
            line = b"".join((*held, end))[: bytes_max + 1]
            held, size = [], 0
            if line.strip():
                yield number, line
            number += 1
        if size <= bytes_max:
            held.append(rest)
            size += len(rest)
    last = b"".join(held)[: bytes_max + 1]
    if last.strip():
        yield number, last


def row(number: int, line: bytes, endpoint: str, bytes_max: int) -> Row:
    """The request of a line. Raises RowInvalid."""
    if len(line) > bytes_max:
        raise RowInvalid("line_too_long", f"The line has more than {bytes_max} bytes.")
    try:
        _ = line.isascii() or line.decode()
        read = _LINE.decode(line)
    except msgspec.ValidationError as err:
        raise RowInvalid("invalid_request", f"The line is no request: {err}.") from err
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise RowInvalid("invalid_json_line", "The line is not JSON.") from err
    if not 1 <= len(read.custom_id) <= CUSTOM_ID_MAX:
        raise RowInvalid(
            "invalid_custom_id", f"A custom_id has 1 to {CUSTOM_ID_MAX} characters.", "custom_id"
        )
    if read.url != endpoint:
        raise RowInvalid("mismatched_url", f"The url has to be the batch's, {endpoint}.", "url")
    body = bytes(read.body)
    if not body.startswith(b"{"):
        raise RowInvalid("invalid_request", "The body has to be an object.", "body")
    return Row(number=number, custom_id=read.custom_id, body=body)


class Check:
    """Whether a file is one of requests, line by line."""

    def __init__(self, endpoint: str, *, rows_max: int, line_bytes_max: int) -> None:
        self.total = 0
        self.errors: list[dict[str, Any]] = []
        self._endpoint = endpoint
        self._rows_max = rows_max
        self._line_bytes_max = line_bytes_max
        self._seen: set[bytes] = set()

    @property
    def over(self) -> bool:
        """Is there no need to look on?"""
        return len(self.errors) >= ERRORS_MAX or self.total > self._rows_max

    def see(self, number: int, line: bytes) -> None:
        """The next line."""
        self.total += 1
        if self.total > self._rows_max:
            self._wrong("too_many_tasks", f"A batch has at most {self._rows_max} requests.")
            return
        try:
            found = row(number, line, self._endpoint, self._line_bytes_max)
            name = blake2b(found.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if name in self._seen:
                raise RowInvalid(
                    "duplicate_custom_id", "An earlier line has the same custom_id.", "custom_id"
                )
            self._seen.add(name)
        except RowInvalid as err:
            self._wrong(err.code, err.message, err.param, number + 1)

    def end(self) -> None:
        """That was all."""
        if not self.total:
            self._wrong("empty_file", "The file has no requests.")

    def _wrong(self, code: str, message: str, param: str | None = None, line: int | None = None) -> None:
        self.errors.append({"code": code, "message": message, "param": param, "line": line})
