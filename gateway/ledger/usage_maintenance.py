"""UsageMaintenance: recurring work on the ledger, which several gateways may safely do at the same time.

Old rows and hours are deleted. Webhooks get the totals of every tenant's hour once it is over. If more usage of
that hour arrives later (a gateway that was without a database ships its journal), they get the new totals under
another id.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.usage_query import GROUPS_MAX, UsageQuery, UsageReader
from gateway.database.usage_store import DAY_MS, HOUR_MS, UsageStore
from gateway.database.webhook_outbox import Outbox
from gateway.ledger.usage_query_parsing import moment_text
from gateway.settings.usage import UsageSettings

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
PRUNE_SECONDS = 3600.0
PRUNES_MAX = 1000
PAUSE_SECONDS = 0.1
REPORT_DELAY_MS = 5 * 60_000
"""How long after an hour's end its totals are sent, when journals have been shipped."""

NOTIFIED_MS = 48 * HOUR_MS
"""How far back hours are sent again if their totals have changed."""

NOTIFIED_MEASURES = ("requests", "failed", "prompt_tokens", "cached_tokens", "output_tokens", "cost")
USAGE_HOUR = "usage.hour"


class UsageMaintenance:
    """Deletes old usage and reports finished hours to the webhooks `hooks`; `wall` is Unix time in seconds."""

    def __init__(
        self,
        settings: UsageSettings,
        store: UsageStore,
        hooks: Sequence[str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._store = store
        self._reader = UsageReader(store.database)
        self._outbox = Outbox(store.database)
        self._hooks = hooks
        self._wall = wall
        self._pruned_at = wall() - PRUNE_SECONDS * random.random()

    async def run(self) -> None:
        """Do what is due every LOOK_SECONDS, until this coroutine is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.run_due()
            except (DatabaseDown, DatabaseConflict, TimeoutError) as err:
                log.debug("maintenance of the usage ledger is put off: %s", err)

    async def run_due(self) -> None:
        """Do what is due now. Raises DatabaseDown."""
        if not self._store.database.exists:
            return
        if self._hooks:
            await self.notify_hours()
        if self._wall() - self._pruned_at >= PRUNE_SECONDS:
            self._pruned_at = self._wall()
            # A bounded number: the rest is deleted the next time.
            for _ in range(PRUNES_MAX):
                if not await self.prune():
                    break
                await asyncio.sleep(PAUSE_SECONDS)

    async def prune(self) -> int:
        """Delete a bounded number of rows that are too old, and return how many they were."""
        now_ms, kept = round(self._wall() * 1000), self._settings
        hours_before_ms = now_ms - kept.hours_days * DAY_MS
        return await self._store.prune(
            rows_before_ms=now_ms - kept.rows_days * DAY_MS,
            hours_before_ms=hours_before_ms,
            journals_before_ms=hours_before_ms,
        )

    async def notify_hours(self) -> None:
        """Put the totals of finished hours into the outbox of webhooks.

        Totals that were sent before are skipped.
        """
        now_ms = round(self._wall() * 1000)
        over_ms = (now_ms - REPORT_DELAY_MS) // HOUR_MS * HOUR_MS
        offset = 0
        while True:
            found = await self._reader.sums(
                UsageQuery(
                    since_ms=over_ms - NOTIFIED_MS,
                    until_ms=over_ms,
                    by=("hour", "organisation", "tenant"),
                    limit=GROUPS_MAX,
                    offset=offset,
                )
            )
            await self._outbox.put([event for group in found for event in self._events(group, now_ms)])
            if len(found) < GROUPS_MAX:
                return
            offset += GROUPS_MAX

    def _events(self, group: dict[str, Any], now_ms: int) -> list[dict[str, Any]]:
        start = group["hour"]
        data = {
            "organisation": group["organisation"],
            "tenant": group["tenant"],
            "since": moment_text(start),
            "until": moment_text(start + HOUR_MS),
            **{name: group[name] for name in NOTIFIED_MEASURES},
        }
        identity = f"usage-{start // HOUR_MS}-{group['tenant']}-{group['requests']}"
        row = {"id": identity, "type": USAGE_HOUR, "at_ms": now_ms, "data": data}
        return [{**row, "hook": hook, "attempts": 0, "due_ms": now_ms} for hook in self._hooks]
