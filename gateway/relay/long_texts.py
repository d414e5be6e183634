"""Long texts of an answer that is put together from a stream.

    {"choices": [{"message": {"content": "a mark"}}]}       the answer is encoded with marks for its long texts
                                         [slice][slice]     the texts are encoded and written 32 KiB at a time

Encoding a hundred megabytes at once would stall all streams for half a second.
"""

import asyncio
import re
import secrets
from collections.abc import Iterator, Sequence
from io import BytesIO

import msgspec

from gateway.relay.long_answer import KEPT_BYTES_MAX, SLICE_BYTES

_MARK = secrets.token_hex(16)
"""The beginning of a mark. It is random, so that no worker can send it."""
_MARKS = re.compile(rb'"%b(\d+)"' % _MARK.encode())


class LongTexts:
    """The long texts of one answer, in the pieces in which they came."""

    def __init__(self) -> None:
        self._texts: list[tuple[Sequence[str], int]] = []

    def marked(self, pieces: Sequence[str]) -> str:
        """Return the text of these pieces, or a mark for it if it is long."""
        length = sum(map(len, pieces))
        if length <= KEPT_BYTES_MAX:
            return "".join(pieces)
        self._texts.append((pieces, length))
        return f"{_MARK}{len(self._texts) - 1}"

    async def written_into(self, body: bytes) -> bytes:
        """Return the JSON of an answer with the long texts in place of their marks."""
        whole = BytesIO()
        for number, part in enumerate(_MARKS.split(body)):
            if number % 2 == 0:
                whole.write(part)
                continue
            whole.write(b'"')
            for text in _slices(*self._texts[int(part)]):
                whole.write(msgspec.json.encode(text)[1:-1])
                await asyncio.sleep(0)
            whole.write(b'"')
        return whole.getvalue()


def _slices(pieces: Sequence[str], length: int) -> Iterator[str]:
    """Yield the text of these pieces in slices; `length`: that of all pieces together."""
    at_once = max(1, SLICE_BYTES * len(pieces) // length)
    for first in range(0, len(pieces), at_once):
        text = "".join(pieces[first : first + at_once])
        for at in range(0, len(text), SLICE_BYTES):
            yield text[at : at + SLICE_BYTES]
