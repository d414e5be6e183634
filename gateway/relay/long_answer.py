"""A long JSON answer without its long values, so that its other fields can be read and changed at once.

    {"id": "a", "choices": [ten megabytes], "usage": {...}}
    {"id": "a", "choices": "a mark"       , "usage": {...}}      the outline, decoded as a short answer is
                           [slice][slice]                        scanned to its end, 32 KiB at a time

A decoder keeps the event loop until it returns: a hundred megabytes would stall all streams for a second. In a
slice that lies inside a value only the brackets outside of strings are counted. What is in a long value is not
checked.
"""

import asyncio
import re
import secrets
from io import BytesIO
from itertools import accumulate

from gateway.domain.errors import WorkerError

LONG_BYTES = 2 * 1024**2
"""Shorter answers are decoded whole, in a few milliseconds."""
SLICE_BYTES = 32 * 1024
KEPT_BYTES_MAX = 64 * 1024
"""The longest value that stays in the outline."""
OUTLINE_BYTES_MAX = 1024**2
CUT_VALUES_MAX = 64

_MARK = secrets.token_hex(16).encode()
"""A placeholder for a value that was cut out. It is random, so that no worker can send it."""
_MARKS = re.compile(rb'"%b(\d+)"' % _MARK)

_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_TOKEN = re.compile(rb'["\[\]{}]')
_STEPS = bytes(1 if char in b"[{" else 255 for char in range(256))
"""For each bracket its step in depth; 255 is -1 as a signed byte."""
_OTHERS = bytes(char for char in range(256) if char not in b"[]{}")


class LongAnswer:
    """A JSON answer, scanned in slices."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._depth = 0
        self._in_string = False
        self._value_at = 0  # where the field's value or name began in which the scan is
        self._kept = bytearray()
        self._kept_to = 0
        self._cut: list[tuple[int, int]] = []

    async def outline(self) -> bytes:
        """Return the answer with marks for its long values.

        Raises WorkerError for an answer whose brackets do not match, or with too much beside its long values.
        """
        body, at = self._body, 0
        while at < len(body):
            piece = body[at : at + SLICE_BYTES]
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                piece = body[at : at + SLICE_BYTES + 1]  # Not cut within an escape.
            if not self._pass_inside(piece):
                self._scan(piece, at)
            at += len(piece)
            kept_to = self._value_at if self._depth > 1 or self._in_string else at
            if len(self._kept) + kept_to - self._kept_to > OUTLINE_BYTES_MAX:
                raise WorkerError
            await asyncio.sleep(0)
        if self._depth or self._in_string:
            raise WorkerError
        return bytes(self._kept + body[self._kept_to :])

    async def restore(self, outline: bytes) -> bytes:
        """Return an outline, which may have been changed, with the long values in place of their marks."""
        whole, body = BytesIO(), memoryview(self._body)
        for number, part in enumerate(_MARKS.split(outline)):
            if number % 2 == 0:
                whole.write(part)
                continue
            start, end = self._cut[int(part)]
            for at in range(start, end, SLICE_BYTES):
                whole.write(body[at : min(at + SLICE_BYTES, end)])
                await asyncio.sleep(0)
        return whole.getvalue()

    def _pass_inside(self, piece: bytes) -> bool:
        """Count the brackets of a slice; return False, and do nothing, if it has the end of a field's value."""
        if self._depth < 2:
            return False
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        steps = b"".join(parts[self._in_string :: 2]).translate(_STEPS, _OTHERS)
        if steps:
            if self._depth + min(accumulate(memoryview(steps).cast("b"))) < 2:
                return False
            self._depth += steps.count(1) - steps.count(255)
        self._in_string ^= len(parts) % 2 == 0
        return True

    def _scan(self, piece: bytes, offset: int) -> None:
        """Follow each bracket and string of a slice, which begins at `offset` of the answer. Raises WorkerError."""
        at = 0
        if self._in_string:
            at = self._end_string(piece, 0, offset)
        while (found := _TOKEN.search(piece, at)) is not None:
            at, token = found.end(), found[0]
            if self._depth == 1 and token not in b"]}":
                self._value_at = offset + found.start()
            if token == b'"':
                at = self._end_string(piece, at, offset)
            elif token in b"[{":
                self._depth += 1
            else:
                self._depth -= 1
                self._end_value(offset + at)

    def _end_string(self, piece: bytes, at: int, offset: int) -> int:
        """Return the position behind a string in whose content `at` lies, or the end of the slice."""
        rest = _STRING_REST.match(piece, at)
        assert rest is not None
        self._in_string = rest.end() == len(piece)
        if self._in_string:
            return len(piece)
        self._end_value(offset + rest.end() + 1)
        return rest.end() + 1

    def _end_value(self, end: int) -> None:
        """Cut out what ends here if it is long, and is the value of a field. Raises WorkerError."""
        if self._depth < 0:
            raise WorkerError
        if self._depth != 1 or end - self._value_at <= KEPT_BYTES_MAX:
            return
        self._kept += self._body[self._kept_to : self._value_at]
        self._kept += b'"%b%d"' % (_MARK, len(self._cut))
        self._cut.append((self._value_at, end))
        self._kept_to = end
        if len(self._cut) > CUT_VALUES_MAX:
            raise WorkerError
