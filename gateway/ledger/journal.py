"""The journal: entries that are not in the database yet, in files below the state directory.

    append -> write(2), at once -> fsync, every second -> read again and shipped -> file removed

`append` writes a few hundred bytes to the end of a file, so an appended entry survives any end of the process, but
for entries that a full disk has refused. If the machine loses power, the last second is lost, as with Redis'
`appendfsync everysec`.

A process locks each of its files (segments) for as long as it runs. An unlocked file was left behind by a process
that has ended; the gateway that finds it ships it. The journal has a bound, beyond which entries are dropped and
counted.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from gateway.ledger.entry import JournalEntry
from gateway.ledger.segment import SUFFIX, Segment, line_of
from gateway.process.file_locks import create_locked, lock_file

log = logging.getLogger(__name__)

DIRECTORY = "usage"
SEGMENT_BYTES = 4 * 1024**2
PENDING_BYTES_MAX = 8 * 1024**2
SYNC_SECONDS = 1.0


class Journal:
    """The journal of this process; `wall` is Unix time in seconds.

    The constructor makes the directory if it is missing, and raises OSError. `bytes_max` bounds all segments
    together.
    """

    def __init__(self, directory: Path, *, bytes_max: int, wall: Callable[[], float] = time.time) -> None:
        self.dropped = 0  # entries that the full journal had no room for
        self.segments: list[Segment] = []
        """The files that this process has locked, in the order in which they are shipped: full ones of its own and
        those that it has taken over, as they came; last the one that is written to."""
        self._directory = directory
        self._bytes_max = bytes_max
        self._room = 0  # bytes that may be appended before `bytes` is computed again
        self._wall = wall
        self._pending = bytearray()  # what the disk did not take
        self._failing = False
        self._unsynced: set[Segment] = set()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open()

    @property
    def bytes(self) -> int:
        """How many bytes are not in the database, as far as is known."""
        return sum(s.size - (s.shipped or 0) for s in self.segments) + len(self._pending)

    def append(self, entry: JournalEntry) -> None:
        """Append an entry. Never raises, and waits only for the system's buffers."""
        line = line_of(entry)
        size = len(line)
        if size > self._room:
            self._room = self._bytes_max - self.bytes
        if size > self._room or (self._pending and len(self._pending) + size > PENDING_BYTES_MAX):
            self._drop()
            return
        self._room -= size
        self._pending += line
        self._write()

    def adopt(self) -> None:
        """Take over the files that processes have left behind. Raises OSError."""
        ours = {segment.name for segment in self.segments}
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            if path.name in ours:
                continue
            try:
                held = lock_file(path)
            except BlockingIOError:
                continue  # Its process is alive.
            if os.fstat(held.fileno()).st_nlink == 0:
                held.close()  # Another process has shipped and removed it just now.
                continue
            self.segments.insert(-1, Segment(path, held, os.fstat(held.fileno()).st_size))
        self._room = 0

    def turn_over(self) -> None:
        """Begin a new segment if the last one has reached SEGMENT_BYTES. Raises OSError."""
        if self.segments[-1].size >= SEGMENT_BYTES and not self._pending:
            self.segments[-1].is_open = False
            self._open()

    def forget(self, segment: Segment) -> None:
        """Remove a segment that is shipped completely."""
        self.segments.remove(segment)
        self._unsynced.discard(segment)
        segment.close()

    async def run(self) -> None:
        """Flush written entries to disk (fsync) once a second, until this coroutine is cancelled."""
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            self._write()
            await self.sync()

    async def sync(self) -> None:
        """Flush written entries to disk (fsync), if possible."""
        self._room = 0  # The database may have taken back a position.
        unsynced, self._unsynced = self._unsynced, set()
        for segment in unsynced:
            if segment.number is None:
                continue  # It was shipped and removed meanwhile.
            # A duplicate: this descriptor stays open whatever happens to the segment meanwhile.
            number = os.dup(segment.number)
            try:
                await asyncio.to_thread(os.fsync, number)
            except OSError as err:
                self._failed(err)
            finally:
                os.close(number)

    def close(self) -> None:
        """Close all segments; those that are not shipped stay on the disk for another process."""
        self._write()
        for segment in self.segments:
            segment.is_open = False
            segment.close()
        self.segments = []

    def _open(self) -> None:
        name = f"{round(self._wall() * 1000):014d}-{secrets.token_hex(8)}{SUFFIX}"
        segment = Segment(self._directory / name, create_locked(self._directory / name), 0)
        segment.is_open = True
        self.segments.append(segment)

    def _write(self) -> None:
        if not self._pending or not self.segments:
            return
        segment = self.segments[-1]
        try:
            assert segment.number is not None, "a segment in the list is open"
            written = os.write(segment.number, self._pending)
        except OSError as err:
            self._failed(err)
            return
        # If less than all of it was written, the rest is written before anything else.
        del self._pending[:written]
        segment.size += written
        self._unsynced.add(segment)
        if self._failing and not self._pending:
            self._failing = False
            log.warning("the usage journal is written again")

    def _failed(self, err: OSError) -> None:
        if not self._failing:
            log.error("the usage journal cannot be written: %s; it is kept in memory", err.strerror)
        self._failing = True

    def _drop(self) -> None:
        if self.dropped == 0:
            log.error("the usage journal is full: further requests are missing from the usage ledger")
        self.dropped += 1
