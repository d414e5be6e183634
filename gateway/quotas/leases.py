"""The leases of this process: kept while their requests run, and ended without keeping a request waiting.

Quota is reserved and settled through a chain of stores, of which this is the outer end:

    leases -> escrow (reserved ahead) -> failover_store -> redis_store, or local_store while Redis is away
"""

import asyncio
import logging
from collections.abc import Callable
from secrets import token_hex

import msgspec

from gateway.quotas.events import LimitEvents
from gateway.quotas.limit import CONCURRENCY, Scope
from gateway.quotas.quota_store import (
    LEASE_SECONDS,
    NO_COST,
    Cost,
    Lease,
    LimitStatus,
    QuotaStore,
    QuotaStoreUnavailable,
    Refusal,
    Reservation,
)

log = logging.getLogger(__name__)

RENEW_SECONDS = LEASE_SECONDS / 3
CLOSE_SECONDS_MAX = 2.0


class Leases:
    """Reserves quota for requests, renews their leases, and ends these in the background."""

    def __init__(
        self,
        store: QuotaStore,
        events: LimitEvents | None = None,
        *,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        """`flush` may have the store send at once what it would otherwise send together with later calls.

        It is called when no lease is held any more.
        """
        self.events = events or LimitEvents()
        self._flush = flush
        self._store = store
        self._held: dict[str, Lease] = {}
        self._endings: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        """Return how many leases are held."""
        return len(self._held)

    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        """Reserve quota; see QuotaStore.reserve.

        Without limits the store is not asked, except for a request that its client may repeat.
        """
        if reservation.idempotency_key is None:
            for scope in reservation.scopes:
                if scope.limits:
                    break
            else:
                return Lease(reservation=reservation)
        decision = await self._store.reserve(reservation)
        if isinstance(decision, Lease):
            self._held[decision.reservation.id] = decision
            if decision.shadow_refusals:
                self.events.shadowed(decision)
        return decision

    async def limit_statuses(
        self, organisation: str, tenant: str, scopes: tuple[Scope, ...]
    ) -> tuple[LimitStatus, ...]:
        """Return what is left of all limits of these scopes, without a charge.

        A reservation of no cost reports all limits, and is released at once. Raises QuotaStoreUnavailable.
        """
        nothing = Reservation(
            id=f"limits-{token_hex(8)}",
            organisation=organisation,
            tenant=tenant,
            scopes=scopes,
            cost=NO_COST,
        )
        decision = await self._store.reserve(nothing)
        if not isinstance(decision, Lease):
            return decision.limit_statuses
        self._store.release(decision)
        shadowed = [status.limit for status in decision.shadow_refusals]
        # The reservation itself takes one place of each limit of concurrency.
        return tuple(
            msgspec.structs.replace(status, remaining=status.remaining + 1)
            if status.unit == CONCURRENCY and status.limit not in shadowed
            else status
            for status in decision.limit_statuses
        )

    def end(self, lease: Lease, actual: Cost | None) -> None:
        """Settle a lease to the actual cost, or release it if there was none. Returns at once."""
        if self._held.pop(lease.reservation.id, None) is None:
            return
        ending = self._store.release(lease) if actual is None else self._store.settle(lease, actual)
        if isinstance(ending, asyncio.Future):
            if ending not in self._endings:  # Leases that the store ends together have one future.
                self._endings.add(ending)
                ending.add_done_callback(self._ended)
            if not self._held:
                # No other request is under way whose end could be sent together with this one.
                asyncio.get_running_loop().call_soon(self._flush)

    async def run(self) -> None:
        """Renew the leases that are held once a period, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._store.renew(list(self._held.values()))
            except QuotaStoreUnavailable as err:
                log.warning("leases could not be renewed: %s", err)

    async def close(self) -> None:
        """Wait for endings under way, for a bounded time."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=CLOSE_SECONDS_MAX)

    def _ended(self, ending: "asyncio.Future[None]") -> None:
        self._endings.discard(ending)
        if not ending.cancelled() and ending.exception() is not None:
            log.warning("a lease could not be ended: %s", ending.exception())
