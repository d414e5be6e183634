"""One file of the journal: lines are added at its end, and read from a position on.

    8 hex digits: CRC-32 of the entry, a space, the entry as JSON in one line

What is not such a line (a machine that lost its power in the middle of one, a disk that gave back something else)
is passed over and counted: the lines before and after it are whole.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from gateway.ledger.entry import JournalEntry, decode, encode

SUFFIX = ".journal"
READ_BYTES = 256 * 1024
"""Read at once. A line is far shorter: its entry has bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Entries that were read. `end`: the position behind them. `spoilt`: lines that are none."""

    entries: list[JournalEntry]
    end: int
    spoilt: int


def line_of(entry: JournalEntry) -> bytes:
    text = encode(entry)
    return b"%08x %s\n" % (zlib.crc32(text), text)


class Segment:
    """A file that this process holds the lock of. `size`: bytes written; `shipped`: those in the database."""

    def __init__(self, path: Path, held: IO[str], size: int) -> None:
        self.path = path
        self.size = size
        self.shipped: int | None = None  # None: the database has not been asked yet
        self.is_open = False  # lines are still added
        self._held = held

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def number(self) -> int:
        """Of its file descriptor, for writing."""
        return self._held.fileno()

    @property
    def done(self) -> bool:
        """Nothing is left to ship, and nothing will come."""
        return not self.is_open and self.shipped is not None and self.shipped >= self.size

    def read(self, position: int, entries_max: int) -> Portion:
        """From a position on, which a line begins at. Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(position)
            data = file.read(min(READ_BYTES, self.size - position))
        entries: list[JournalEntry] = []
        spoilt = at = 0
        while len(entries) < entries_max:
            end = data.find(b"\n", at)
            if end < 0:
                break
            entry = _entry(data[at:end])
            if entry is not None:
                entries.append(entry)
            else:
                spoilt += 1
            at = end + 1
        if at == 0 and data and (not self.is_open or len(data) == READ_BYTES):
            # No end of a line: torn, and nothing will complete it.
            return Portion(entries=[], end=position + len(data), spoilt=1)
        return Portion(entries=entries, end=position + at, spoilt=spoilt)

    def close(self) -> None:
        """Lets go of it. A file that is done is removed."""
        if self.shipped is not None and self.shipped >= self.size:
            self.path.unlink(missing_ok=True)
        self._held.close()


def _entry(line: bytes) -> JournalEntry | None:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        return decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
