"""Segment: one file of the journal, which is appended line by line, and read from a position on.

    8 hex digits: CRC-32 of the entry, a space, the entry as JSON in one line

Bytes that are not such a line (the machine lost power while writing, or the disk returned wrong bytes) are skipped
and counted; the lines before and after them are intact.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from gateway.ledger.entry import JournalEntry, decode, encode

SUFFIX = ".journal"
READ_BYTES = 512 * 1024
"""The bytes that are read at once; a line is far shorter, since its entry has bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Entries that were read from a segment."""

    entries: list[JournalEntry]
    end: int  # the position behind the entries
    spoilt: int  # lines that could not be read


def line_of(entry: JournalEntry) -> bytes:
    """Return the line of an entry."""
    text = encode(entry)
    return b"%08x %s\n" % (zlib.crc32(text), text)


class Segment:
    """A file of the journal, which this process has locked."""

    def __init__(self, path: Path, held: IO[str], size: int) -> None:
        self.path = path
        self.size = size  # bytes that were written
        self.shipped: int | None = None  # bytes that are in the database; None: it has not been asked yet
        self.is_open = False  # lines are still appended
        self.number: int | None = held.fileno()  # the file descriptor; None when the file is closed
        self._held = held

    @property
    def name(self) -> str:
        """The file name, which is the journal's name in the database."""
        return self.path.name

    @property
    def done(self) -> bool:
        """Whether all of the file is shipped and no line will be appended."""
        return not self.is_open and self.shipped is not None and self.shipped >= self.size

    def read(self, position: int, entries_max: int) -> Portion:
        """Read entries from a position on, at which a line begins. Raises OSError."""
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
            # A torn line, which will never be completed.
            return Portion(entries=[], end=position + len(data), spoilt=1)
        return Portion(entries=entries, end=position + at, spoilt=spoilt)

    def close(self) -> None:
        """Release the file, and remove it if it is shipped completely."""
        if self.shipped is not None and self.shipped >= self.size:
            self.path.unlink(missing_ok=True)
        self.number = None
        self._held.close()


def _entry(line: bytes) -> JournalEntry | None:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        return decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
