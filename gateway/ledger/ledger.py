"""Ledger: the usage ledger of one gateway, put together."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from gateway.database.database import Database
from gateway.database.usage_query import UsageReader
from gateway.database.usage_store import UsageStore
from gateway.ledger.entry import Alert, entry_of
from gateway.ledger.journal import DIRECTORY, Journal
from gateway.ledger.shipper import Shipper
from gateway.settings import Settings
from gateway.telemetry.record import RequestRecord

Loop = Callable[[], Awaitable[None]]


class Ledger:
    """Raises OSError where the journal cannot be made. `upgrades`: of tables of an older version."""

    def __init__(self, settings: Settings, database: Database, *, upgrades: bool) -> None:
        self.database = database
        self.upgrades = upgrades
        self.reader = UsageReader(database)
        self.journal = Journal(
            Path(settings.state_directory) / DIRECTORY, bytes_max=settings.usage.journal_bytes_max
        )
        self.shipper = Shipper(self.journal, UsageStore(database), upgrades=upgrades)

    def observe(self, record: RequestRecord) -> None:
        """A request has ended. Nobody's are those that no key came with, or one that opens nothing."""
        if record.tenant:
            self.journal.append(entry_of(record))

    def alert(self, alert: Alert) -> None:
        """Something that webhooks are told: once, whoever else says so, and whatever happens to this process."""
        self.journal.append(alert)

    def loops(self) -> Sequence[tuple[str, Loop]]:
        """What runs beside requests, by name."""
        return (("usage journal", self.journal.run), ("usage", self.shipper.run))

    async def close(self) -> None:
        """Ships what can be shipped soon; the rest stays on the disk."""
        await self.shipper.close()
        self.journal.close()
