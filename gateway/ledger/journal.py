"""The journal: what the database does not have yet, in files of this process, below the state directory.

    append -> write(2), at once -> fsync, every second -> read again and shipped -> file removed

`append` is one write of a few hundred bytes to the end of a file: what was appended outlives the process, however
it ends. What the machine itself loses with its power is the last second, as with Redis' `appendfsync everysec`.

A process locks each of its files (a segment) for as long as it lives. A file that nobody holds was left behind by
a process that is gone: whoever finds it ships it. The journal has a bound; beyond it entries are dropped
and counted.
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
    """`directory`: made if need be. `bytes_max`: of all segments held here. `wall`: Unix time in seconds."""

    def __init__(self, directory: Path, *, bytes_max: int, wall: Callable[[], float] = time.time) -> None:
        self.dropped = 0
        self.segments: list[Segment] = []  # the oldest first; the last one is written to
        self._directory = directory
        self._bytes_max = bytes_max
        self._wall = wall
        self._pending = bytearray()  # what the disk did not take
        self._failing = False
        self._unsynced: set[Segment] = set()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open()

    @property
    def bytes(self) -> int:
        """That are not in the database, as far as is known."""
        return sum(s.size - (s.shipped or 0) for s in self.segments) + len(self._pending)

    def append(self, entry: JournalEntry) -> None:
        """Never raises, and never waits for anything but the system's own buffers."""
        line = line_of(entry)
        full = self.bytes + len(line) > self._bytes_max
        if full or len(self._pending) + len(line) > PENDING_BYTES_MAX:
            self._drop()
            return
        self._pending += line
        self._write()

    def adopt(self) -> None:
        """Takes over what processes that are gone have left. Raises OSError."""
        ours = {segment.name for segment in self.segments}
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            if path.name in ours:
                continue
            try:
                held = lock_file(path)
            except BlockingIOError:
                continue  # Its process lives.
            if os.fstat(held.fileno()).st_nlink == 0:
                held.close()  # Somebody else has shipped and removed it just now.
                continue
            self.segments.insert(-1, Segment(path, held, os.fstat(held.fileno()).st_size))

    def turn_over(self) -> None:
        """A new segment, where the last one has grown. Raises OSError."""
        if self.segments[-1].size >= SEGMENT_BYTES and not self._pending:
            self.segments[-1].is_open = False
            self._open()

    def forget(self, segment: Segment) -> None:
        """One that is done."""
        self.segments.remove(segment)
        self._unsynced.discard(segment)
        segment.close()

    async def run(self) -> None:
        """Brings what was written onto the disk, once a second."""
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            self._write()
            await self.sync()

    async def sync(self) -> None:
        """What was appended is on the disk, unless that fails."""
        unsynced, self._unsynced = self._unsynced, set()
        for segment in unsynced:
            # A duplicate: whatever happens to the segment meanwhile, this number is ours.
            number = os.dup(segment.number)
            try:
                await asyncio.to_thread(os.fsync, number)
            except OSError as err:
                self._failed(err)
            finally:
                os.close(number)

    def close(self) -> None:
        """Lets go of all segments; those that are not shipped stay for whoever comes."""
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
            written = os.write(segment.number, self._pending)
        except OSError as err:
            self._failed(err)
            return
        # Less than all of it: the rest follows, before anything else.
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
            log.error("the usage journal is full: what is used from here on is not accounted for")
        self.dropped += 1
