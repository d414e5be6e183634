"""Reports the usage of accounts in the ledger to quotas; see gateway.quotas.counter_recovery."""

import asyncio
from collections.abc import Mapping, Sequence

from gateway.database.account_hours import AccountHours, HourlyUsage
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.ledger.shipper import Shipper
from gateway.quotas.counter_recovery import INLINE_HOURS_MAX, SpentHour, SpentUnknown

AWAY = (DatabaseDown, DatabaseConflict, OSError, TimeoutError)


class LedgerAccountUsage:
    """A SpentReader on the usage ledger.

    `families` are ids of keys of the settings file, by the key that they count as.
    """

    def __init__(
        self, shipper: Shipper, hours: AccountHours, families: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._shipper = shipper
        self._hours = hours
        self._families = families or {}

    def reconfigure(self, families: Mapping[str, Sequence[str]]) -> None:
        """Replace the families by those of changed settings."""
        self._families = families

    async def hours(self, scope: str, since: float) -> Sequence[SpentHour]:
        """Return what an account has used since that Unix time, by hour and model. Raises SpentUnknown."""
        kind, _, name = scope.partition(":")
        try:
            # Requests that this gateway has settled a moment ago must be counted too.
            await self._shipper.ship()
            found = await self._hours.usage_since(
                kind, name, round(since * 1000), self._families.get(name, ())
            )
        except AWAY as err:
            raise SpentUnknown(str(err) or "the database does not answer in time") from err
        return _hours(found) if len(found) <= INLINE_HOURS_MAX else await asyncio.to_thread(_hours, found)


def _hours(found: Sequence[HourlyUsage]) -> list[SpentHour]:
    return [SpentHour(start=start / 1000, model=model, units=units) for start, model, units in found]
