"""Ledger: the usage ledger of one gateway, put together."""

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from gateway.database.database import Database
from gateway.database.webhook_outbox import Outbox
from gateway.database.usage_query import UsageReader
from gateway.database.account_hours import AccountHours
from gateway.database.usage_store import UsageStore
from gateway.ledger.account_usage import LedgerAccountUsage
from gateway.ledger.entry import AlertEntry, usage_entry
from gateway.ledger.journal import DIRECTORY, Journal
from gateway.ledger.shipper import Shipper
from gateway.ledger.usage_maintenance import USAGE_HOUR, UsageMaintenance
from gateway.ledger.webhooks import Webhooks
from gateway.quotas.events import Alert as QuotaAlert
from gateway.settings.tree import Settings
from gateway.telemetry.record import RequestRecord

BUDGET_ALERT = "budget.alert"

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
        store = UsageStore(database)
        self.webhooks = Webhooks(settings.webhooks, Outbox(database))
        self.shipper = Shipper(self.journal, store, hooks=self.webhooks.wanting, upgrades=upgrades)
        self.account_usage = LedgerAccountUsage(self.shipper, AccountHours(database), families(settings))
        self._maintenance = UsageMaintenance(settings.usage, store, self.webhooks.wanting(USAGE_HOUR))

    def observe(self, record: RequestRecord) -> None:
        """A request has ended. Nobody's are those that no key came with, or one that opens nothing."""
        if record.tenant:
            self.journal.append(usage_entry(record))

    def alert(self, alert: QuotaAlert) -> None:
        """So much of a limit is used: webhooks are told, whatever happens to this process."""
        data = msgspec.to_builtins(alert)
        at_ms = round(time.time() * 1000)
        self.journal.append(
            AlertEntry(id=f"budget-{secrets.token_hex(16)}", type=BUDGET_ALERT, at_ms=at_ms, data=data)
        )

    def loops(self) -> Sequence[tuple[str, Loop]]:
        """What runs beside requests, by name."""
        return (
            ("usage journal", self.journal.run),
            ("usage", self.shipper.run),
            ("usage keeper", self._maintenance.run),
            ("webhooks", self.webhooks.run),
        )

    async def close(self) -> None:
        """Ships what can be shipped soon; the rest stays on the disk."""
        await self.shipper.close()
        self.journal.close()


def families(settings: Settings) -> dict[str, list[str]]:
    """Keys of the settings file that count as another one, by that one."""
    found: dict[str, list[str]] = {}
    for tenant in settings.tenants:
        for key in tenant.keys:
            if key.family is not None:
                found.setdefault(key.family, []).append(key.id)
    return found
