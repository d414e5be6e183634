"""The input file of a batch: its lines, each of which is one request (a row).

{"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions", "body": {..}}
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from radix_cache.loop_yield import LoopYielder

CUSTOM_ID_MAX = 512
LINES_PER_STEP = 1000
"""The lines between two checks whether to yield, since a file may have millions of blank lines."""
ERRORS_MAX = 100
"""How many errors of one file are reported."""


class InputLine(msgspec.Struct, frozen=True):
    """The fields of a line."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


_LINE = msgspec.json.Decoder(InputLine)


class RowInvalid(Exception):
    """The line is not a valid request of this batch; `param` is the invalid field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """One request of a batch."""

    number: int  # of the line in its file, from 0
    custom_id: str
    body: bytes


async def split_lines(pieces: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers.

    A line that is too long is cut to `bytes_max` + 1 bytes.
    """
    held: list[bytes] = []
    size = number = 0
    yielder = LoopYielder(pauses=True)
    async for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for end in ended:
            line = b"".join((*held, end))[: bytes_max + 1]
            held, size = [], 0
            if line.strip():
                yield number, line
            number += 1
            if number % LINES_PER_STEP == 0:
                await yielder.yield_if_due()
        if size <= bytes_max:
            held.append(rest)
            size += len(rest)
    last = b"".join(held)[: bytes_max + 1]
    if last.strip():
        yield number, last


def parse_row(number: int, line: bytes, endpoint: str, bytes_max: int) -> InputRow:
    """Return the request of a line. Raises RowInvalid."""
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
    return InputRow(number=number, custom_id=read.custom_id, body=body)


class InputCheck:
    """Validates an input file line by line: `errors` holds what is wrong, `total` the number of requests."""

    def __init__(self, endpoint: str, *, rows_max: int, line_bytes_max: int) -> None:
        self.total = 0
        self.errors: list[dict[str, Any]] = []
        self._endpoint = endpoint
        self._rows_max = rows_max
        self._line_bytes_max = line_bytes_max
        self._seen: set[bytes] = set()

    @property
    def over(self) -> bool:
        """Whether no further line needs to be checked."""
        return len(self.errors) >= ERRORS_MAX or self.total > self._rows_max

    def check_line(self, number: int, line: bytes) -> None:
        """Validate the next line."""
        self.total += 1
        if self.total > self._rows_max:
            self._add_error("too_many_tasks", f"A batch has at most {self._rows_max} requests.")
            return
        try:
            found = parse_row(number, line, self._endpoint, self._line_bytes_max)
            name = blake2b(found.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if name in self._seen:
                raise RowInvalid(
                    "duplicate_custom_id", "An earlier line has the same custom_id.", "custom_id"
                )
            self._seen.add(name)
        except RowInvalid as err:
            self._add_error(err.code, err.message, err.param, number + 1)

    def end(self) -> None:
        """Validate the file as a whole after its last line."""
        if not self.total:
            self._add_error("empty_file", "The file has no requests.")

    def _add_error(self, code: str, message: str, param: str | None = None, line: int | None = None) -> None:
        self.errors.append({"code": code, "message": message, "param": param, "line": line})
