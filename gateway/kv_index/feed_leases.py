"""This gateway's part in following the workers' events: renews its leases, and claims what falls to it.

    every RENEW_SECONDS    one call for all workers: it lives on; what has changed comes back
    something to claim     a second call, with every lease as it was and as it should be

A gateway that dies is missed after LEASE_SECONDS by the server's clock, and its seconds write from their next
renewal on. A gateway writes only while its own clock says that nobody can have missed it (`fresh`), counted from
before it asked. While Redis is away everybody goes on listening to whom he listened to; nobody could take over.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from gateway.kv_index.feed_election import FollowerStatus, claim
from radix_cache.loop_yield import LoopYielder
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from radix_cache.shared.feed_leases import (
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


class FeedLeases:
    """`run` for as long as the gateway lives, then `leave`.

    `stands`: by worker, what this gateway can do. `changed`: called when the table is another one, or fresh again.
    """

    def __init__(
        self,
        store: FeedLeaseStore,
        stands: Callable[[], Mapping[WorkerId, FollowerStatus]],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = FeedLeaseTable()
        self._store = store
        self._stands = stands
        self._changed = changed
        self._clock = clock
        self._until = 0.0
        self._was_fresh = False
        self._due = asyncio.Event()
        self._rounds: dict[WorkerId, tuple[FeedLease, int]] = {}

    @property
    def fresh(self) -> bool:
        """Are the leases what the table says, for sure?"""
        return self._clock() < self._until

    def writes(self, worker: WorkerId) -> bool:
        return self.table.of(worker).writer == self._store.identity

    def follows(self, worker: WorkerId) -> bool:
        lease = self.table.of(worker)
        return self._store.identity in (lease.writer, lease.second)

    def hurry(self) -> None:
        """There is news for the others, or something to claim."""
        self._due.set()

    async def run(self) -> None:
        while True:
            try:
                await self.renew()
            except RedisDown as err:
                log.debug("leases of feeds wait for Redis: %s", err)
            if self._was_fresh and not self.fresh:
                self._was_fresh = False
                self._changed()
            try:
                async with asyncio.timeout(RENEW_SECONDS):
                    await self._due.wait()
                await asyncio.sleep(RENEW_SECONDS / 20)  # What comes together goes together.
            except TimeoutError:
                pass
            self._due.clear()

    async def renew(self) -> None:
        """One round. Raises RedisDown."""
        await self._call([])
        changes = await self._claims()
        if changes:
            await self._call(changes[:CHANGES_PER_CALL_MAX])
        if len(changes) > CHANGES_PER_CALL_MAX:
            self._due.set()

    async def leave(self) -> None:
        """The others need not wait for it to be missed."""
        self._until = 0.0
        try:
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                await self._store.renew(self.table, 0)
        except (RedisDown, TimeoutError) as err:
            log.debug("leases of feeds run out by themselves: %s", err)

    async def _call(self, changes: list[FeedLeaseChange]) -> None:
        asked_at = self._clock()
        table = await self._store.renew(self.table, int(LEASE_SECONDS * 1000), changes)
        self._until = asked_at + LEASE_SECONDS
        news = table is not self.table or not self._was_fresh
        self.table, self._was_fresh = table, True
        if news:
            self._changed()

    async def _claims(self) -> list[FeedLeaseChange]:
        table, yielder = self.table, LoopYielder()
        rounds: dict[WorkerId, tuple[FeedLease, int]] = {}
        changes = []
        stands = dict(self._stands())
        for worker in table.leases.keys() - stands.keys():
            stands[worker] = FollowerStatus(wanted=False)
        for worker, stand in stands.items():
            lease = table.of(worker)
            before, number = self._rounds.get(worker, (lease, -1))
            number = number + 1 if (before.writer, before.second) == (lease.writer, lease.second) else 0
            rounds[worker] = (lease, number)
            wanted = claim(worker, lease, table.gateways, self._store.identity, stand, number)
            if wanted != lease:
                changes.append(FeedLeaseChange(worker, lease, wanted))
            await yielder.yield_if_due()
        self._rounds = rounds
        return changes
