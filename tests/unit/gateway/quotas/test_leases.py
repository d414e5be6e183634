"""Leases of requests: when their end is sent."""

import asyncio

from gateway.quotas.leases import Leases
from gateway.quotas.limit import Limit, Scope
from gateway.quotas.quota_store import Cost, Lease, Reservation
from policies.admission.limit_windows import Window

LIMITED = Scope(name="tenant:t", limits=(Limit(unit="requests", amount=10, window=Window(seconds=60)),))


class BatchingStore:
    """A store that grants everything, and sends what ends a lease when it is told to."""

    def __init__(self):
        self.waiting = []
        self.sent = 0

    async def reserve(self, reservation, *, urgent=True):
        return Lease(reservation=reservation)

    def settle(self, lease, actual):
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    def flush(self):
        self.sent += 1
        while self.waiting:
            self.waiting.pop().set_result(None)


async def test_the_end_of_the_last_request_is_sent_at_once_and_others_leave_together():
    store = BatchingStore()
    leases = Leases(store, flush=store.flush)
    held = [
        await leases.reserve(
            Reservation(
                id=f"r{number}", organisation="o", tenant="t", scopes=(LIMITED,), cost=Cost(prompt_tokens=1)
            )
        )
        for number in range(2)
    ]
    leases.end(held[0], Cost(prompt_tokens=1))
    await asyncio.sleep(0)
    assert (store.sent, len(store.waiting)) == (0, 1)
    leases.end(held[1], Cost(prompt_tokens=1))
    await asyncio.sleep(0)
    assert (store.sent, len(store.waiting)) == (1, 0)
