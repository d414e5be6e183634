"""This gateway's leases on workers' KV events: renews them, and claims the roles that the election gives it.

    every RENEW_SECONDS    one call for all workers renews the leases and returns what has changed
    something to claim     a second call, with every lease as it was and as it should be

The leases of a dead gateway end after LEASE_SECONDS by the server's clock; the standby of each worker writes from
its next renewal on. A gateway writes only while by its own clock its leases cannot have ended (`fresh`), counted
from before the renewal was sent. While Redis is away every gateway keeps following its workers, since no other
gateway can take over.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from gateway.kv_index.feed_election import FollowerStatus, claim
from radix_cache.loop_yield import LoopYielder
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from radix_cache.shared.feed_lease_store import (
    CHANGES_PER_CALL_MAX,
    FeedLease,
    FeedLeaseChange,
    FeedLeaseStore,
    FeedLeaseTable,
)

log = logging.getLogger(__name__)

LEASE_SECONDS = 1.2
RENEW_SECONDS = 0.4
LEAVE_SECONDS_MAX = 0.5


class OwnFeedLeases:
    """The leases of this gateway: `run` for as long as the gateway serves, then `leave`.

    Args:
        store: The leases in Redis.
        statuses: Returns what this gateway can do for each worker.
        changed: Called when the leases have changed, become fresh, or are no longer fresh.
        clock: Seconds that never run backwards.
    """

    def __init__(
        self,
        store: FeedLeaseStore,
        statuses: Callable[[], Mapping[WorkerId, FollowerStatus]],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = FeedLeaseTable()
        self._store = store
        self._statuses = statuses
        self._changed = changed
        self._clock = clock
        self._fresh_until = 0.0
        self._was_fresh = False
        self._wake = asyncio.Event()
        self._rounds: dict[WorkerId, tuple[FeedLease, int]] = {}

    @property
    def fresh(self) -> bool:
        """Whether the leases are certain to be as the table has them."""
        return self._clock() < self._fresh_until

    def writes(self, worker: WorkerId) -> bool:
        """Return whether this gateway writes the worker's events to the index."""
        return self.table.of(worker).writer == self._store.identity

    def follows(self, worker: WorkerId) -> bool:
        """Return whether this gateway follows the worker, as writer or as second."""
        lease = self.table.of(worker)
        return self._store.identity in (lease.writer, lease.second)

    def renew_soon(self) -> None:
        """Bring the next renewal forward, because of a change for other gateways, or a role to claim."""
        self._wake.set()

    async def run(self) -> None:
        """Renew the leases every RENEW_SECONDS until cancelled."""
        while True:
            try:
                await self.renew()
            except RedisDown as err:
                log.debug("the leases of KV event feeds wait for Redis: %s", err)
            if self._was_fresh and not self.fresh:
                self._was_fresh = False
                self._changed()
            try:
                async with asyncio.timeout(RENEW_SECONDS):
                    await self._wake.wait()
                await asyncio.sleep(RENEW_SECONDS / 20)  # Collects several changes in one call.
            except TimeoutError:
                pass
            self._wake.clear()

    async def renew(self) -> None:
        """Run one round: renew the leases, and claim new ones. Raises RedisDown."""
        await self._exchange([])
        changes = await self._claims()
        if changes:
            await self._exchange(changes[:CHANGES_PER_CALL_MAX])
        if len(changes) > CHANGES_PER_CALL_MAX:
            self._wake.set()

    async def leave(self) -> None:
        """Give up all leases, so that other gateways need not wait for their expiry."""
        self._fresh_until = 0.0
        try:
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                await self._store.renew(self.table, 0)
        except (RedisDown, TimeoutError) as err:
            log.debug("the leases of KV event feeds could not be given up and will run out: %s", err)

    async def _exchange(self, changes: list[FeedLeaseChange]) -> None:
        asked_at = self._clock()
        table = await self._store.renew(self.table, int(LEASE_SECONDS * 1000), changes)
        self._fresh_until = asked_at + LEASE_SECONDS
        changed = table is not self.table or not self._was_fresh
        self.table, self._was_fresh = table, True
        if changed:
            self._changed()

    async def _claims(self) -> list[FeedLeaseChange]:
        table, yielder = self.table, LoopYielder()
        rounds: dict[WorkerId, tuple[FeedLease, int]] = {}
        changes = []
        statuses = dict(self._statuses())
        for worker in table.leases.keys() - statuses.keys():
            statuses[worker] = FollowerStatus(wanted=False)
        for worker, status in statuses.items():
            lease = table.of(worker)
            before, number = self._rounds.get(worker, (lease, -1))
            number = number + 1 if (before.writer, before.second) == (lease.writer, lease.second) else 0
            rounds[worker] = (lease, number)
            wanted = claim(worker, lease, table.gateways, self._store.identity, status, number)
            if wanted != lease:
                changes.append(FeedLeaseChange(worker, lease, wanted))
            await yielder.yield_if_due()
        self._rounds = rounds
        return changes
