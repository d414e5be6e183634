"""Shipper: moves the journal to the database, in order, each entry exactly once.

    journal --portions of 1024--> one transaction each --> position --> file removed
                  ^                       |
                  +--- no database -------+   tried again, at growing intervals

No request waits for this. A portion that was stored without a confirmation (broken connection, dead process) is not
stored again, since the database has the position of each file.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gateway.database import schema
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.usage_store import JournalMoved, UsageRow, UsageStore
from gateway.ledger.entry import AlertEntry, UsageEntry
from gateway.ledger.journal import Journal
from gateway.ledger.segment import Portion, Segment

log = logging.getLogger(__name__)

PORTION = 1024
"""The most entries in one transaction, which costs as much as some hundred entries do by themselves.

All that grows with the entries is done in a thread; see prepared_rows of gateway/database/usage_store.py.
"""

SHIP_SECONDS = 1.0
SHIP_SECONDS_MAX = 15.0
ADOPT_SECONDS = 60.0
CLOSE_SECONDS_MAX = 3.0
ANSWER_SECONDS_MAX = 30.0


class Shipper:
    """Ships the journals of this process and of dead processes.

    `hooks` returns the names of the webhooks for events of a type; `upgrades`: whether tables of an older version
    are upgraded.
    """

    def __init__(
        self,
        journal: Journal,
        store: UsageStore,
        *,
        hooks: Callable[[str], Sequence[str]] = lambda _: (),
        upgrades: bool = True,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.shipped = 0  # entries
        self.spoilt = 0  # lines that could not be read
        self.away = False  # the database does not answer
        self._journal = journal
        self._store = store
        self._hooks = hooks
        self._upgrades = upgrades
        self._wall = wall
        self._right_schema = False
        self._shipping = asyncio.Lock()
        self._adopted_at = float("-inf")

    async def run(self) -> None:
        """Ship the journal once a period, until this coroutine is cancelled."""
        seconds = SHIP_SECONDS
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.ship()
                seconds = SHIP_SECONDS
            except (DatabaseDown, DatabaseConflict, OSError, TimeoutError) as err:
                self._note_failure(err)
                seconds = min(2 * seconds, SHIP_SECONDS_MAX)

    async def close(self) -> None:
        """Ship the rest if that can be done soon; otherwise it stays in the journal."""
        try:
            await asyncio.wait_for(self.ship(), CLOSE_SECONDS_MAX)
        except (DatabaseDown, DatabaseConflict, OSError, TimeoutError) as err:
            self._note_failure(err)

    async def ship(self) -> None:
        """Ship everything that is in the journal now.

        Raises DatabaseDown, DatabaseConflict, OSError, TimeoutError.

        Entries that arrive meanwhile wait for the next call. Under steady traffic there is always one more, and a
        transaction for every few of them would cost as much as the requests themselves.
        """
        async with self._shipping:
            self._take_over()
            for segment in tuple(self._journal.segments):
                end = segment.size
                while (segment.shipped is None or segment.shipped < end) and await self._portion(segment):
                    pass
                if segment.done:
                    self._journal.forget(segment)
            self._journal.turn_over()

    async def _portion(self, segment: Segment) -> bool:
        """Ship one portion of a segment; return whether there may be more to do for it."""
        if segment.shipped is not None and segment.shipped >= segment.size:
            return False
        if segment.size == 0:
            segment.shipped = 0
            return False
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            if not self._right_schema:
                await schema.ensure_current(self._store.database, upgrades=self._upgrades)
                self._right_schema = True
            if segment.shipped is None:
                segment.shipped = await self._store.position(segment.name)
                return True
            try:
                portion, rows, alerts = await asyncio.to_thread(_read, segment, segment.shipped)
            except FileNotFoundError:
                log.error("the usage journal file %s was removed before it was shipped", segment.name)
                segment.shipped = segment.size
                return False
            if portion.end == segment.shipped:
                return False
            written = await self._write(segment, segment.shipped, rows, alerts, portion.end)
        if written:
            segment.shipped = portion.end
            self.shipped += len(portion.entries)
            self.spoilt += portion.spoilt
            if portion.spoilt:
                log.error(
                    "%d lines of the usage journal file %s cannot be read", portion.spoilt, segment.name
                )
        if self.away:
            self.away = False
            log.warning("the database answers again: the usage journal is shipped")
        return True

    async def _write(
        self,
        segment: Segment,
        position: int,
        rows: Sequence[UsageRow],
        alerts: Sequence[AlertEntry],
        end: int,
    ) -> bool:
        """Store a portion; return False if the database was already further."""
        try:
            await self._store.write(
                rows,
                journal=segment.name,
                position=position,
                end=end,
                now_ms=round(self._wall() * 1000),
                events=[row for alert in alerts for row in self._addressed(alert)],
            )
        except JournalMoved as moved:
            segment.shipped = moved.position
            return False
        return True

    def _addressed(self, alert: AlertEntry) -> list[dict[str, Any]]:
        """Return one outbox row for every webhook that is configured for the event."""
        row = {**msgspec.structs.asdict(alert), "attempts": 0, "due_ms": alert.at_ms}
        return [{**row, "hook": name} for name in self._hooks(alert.type)]

    def _take_over(self) -> None:
        """Adopt files that other processes have left behind, every ADOPT_SECONDS."""
        now = self._wall()
        if not 0 <= now - self._adopted_at < ADOPT_SECONDS:
            self._adopted_at = now
            self._journal.adopt()

    def _note_failure(self, err: Exception) -> None:
        if not self.away:
            reason = str(err) or "time limit exceeded"
            log.warning("usage stays in the journal until the database answers: %s", reason)
        self.away = True
        self._right_schema = False


def _read(segment: Segment, position: int) -> tuple[Portion, list[UsageRow], list[AlertEntry]]:
    """Return the next portion of a segment, its rows of usage and its alerts. Raises OSError."""
    portion = segment.read(position, PORTION)
    rows: list[UsageRow] = []
    alerts: list[AlertEntry] = []
    for entry in portion.entries:
        if isinstance(entry, UsageEntry):
            rows.append(msgspec.structs.asdict(entry))
        else:
            alerts.append(entry)
    return portion, rows, alerts
