"""The leases of this process: kept while their requests run, ended in the background."""

import asyncio
import logging

from gateway.quotas.quota import (
    LEASE_SECONDS,
    Cost,
    Lease,
    QuotaStore,
    QuotaUnavailable,
    Refusal,
    Reservation,
)

log = logging.getLogger(__name__)

RENEW_SECONDS = LEASE_SECONDS / 3
CLOSE_SECONDS_MAX = 2.0


class Leases:
    """Reserves for a request, and ends its lease without keeping anybody waiting."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._held: dict[str, Lease] = {}
        self._endings: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        """See QuotaStore.reserve. Without limits there is nothing to reserve and nobody to ask."""
        if not any(scope.limits or scope.concurrency for scope in reservation.scopes):
            return Lease(reservation=reservation)
        decision = await self._store.reserve(reservation)
        if isinstance(decision, Lease):
            self._held[reservation.id] = decision
        return decision

    def end(self, lease: Lease, actual: Cost | None) -> None:
        """Settles to the actual cost, or releases if there was none. Returns at once."""
        if self._held.pop(lease.reservation.id, None) is None:
            return
        task = asyncio.get_running_loop().create_task(self._end(lease, actual))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def run(self) -> None:
        """Keeps what is held from expiring."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if self._held:
                try:
                    await self._store.renew(list(self._held.values()))
                except QuotaUnavailable as err:
                    log.warning("leases could not be renewed: %s", err)

    async def close(self) -> None:
        """Waits for endings under way, for a bounded time."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=CLOSE_SECONDS_MAX)

    async def _end(self, lease: Lease, actual: Cost | None) -> None:
        try:
            await (self._store.release(lease) if actual is None else self._store.settle(lease, actual))
        except QuotaUnavailable as err:
            log.warning("lease %s could not be ended: %s", lease.reservation.id, err)
