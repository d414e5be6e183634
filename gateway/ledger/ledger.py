"""Ledger: the usage ledger of one gateway, assembled from its parts."""

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from gateway.database.account_hours import AccountHours
from gateway.database.database import Database
from gateway.database.usage_query import UsageReader
from gateway.database.usage_store import UsageStore
from gateway.database.webhook_outbox import Outbox
from gateway.ledger.account_usage import LedgerAccountUsage
from gateway.ledger.entry import AlertEntry, usage_entry
from gateway.ledger.journal import DIRECTORY, Journal
from gateway.ledger.shipper import Shipper
from gateway.ledger.usage_maintenance import USAGE_HOUR, UsageMaintenance
from gateway.ledger.webhooks import Webhooks
from gateway.quotas.events import LimitAlert
from gateway.settings.tree import Settings
from gateway.telemetry.request_record import RequestRecord

BUDGET_ALERT = "budget.alert"

Loop = Callable[[], Awaitable[None]]


class Ledger:
    """The usage ledger of one gateway: journal, shipper, maintenance and webhooks.

    `upgrades`: whether tables of an older version are upgraded. The constructor raises OSError where the
    journal cannot be made.
    """

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
        """Append a finished request to the journal, unless it has no tenant (no key, or an invalid one)."""
        if record.tenant:
            self.journal.append(usage_entry(record))

    def alert(self, alert: LimitAlert) -> None:
        """Append an alert of a limit to the journal, so that webhooks get it whatever happens to this process."""
        data = msgspec.to_builtins(alert)
        at_ms = round(time.time() * 1000)
        self.journal.append(
            AlertEntry(id=f"budget-{secrets.token_hex(16)}", type=BUDGET_ALERT, at_ms=at_ms, data=data)
        )

    def loops(self) -> Sequence[tuple[str, Loop]]:
        """Return the background loops of the ledger, by name."""
        return (
            ("usage journal", self.journal.run),
            ("usage", self.shipper.run),
            ("usage keeper", self._maintenance.run),
            ("webhooks", self.webhooks.run),
        )

    async def close(self) -> None:
        """Ship what can be shipped soon; the rest stays on the disk."""
        await self.shipper.close()
        self.journal.close()


def families(settings: Settings) -> dict[str, list[str]]:
    """Return ids of keys in the settings file that count as another key, by that key's id."""
    found: dict[str, list[str]] = {}
    for tenant in settings.tenants:
        for key in tenant.keys:
            if key.family is not None:
                found.setdefault(key.family, []).append(key.id)
    return found
