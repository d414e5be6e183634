"""The batches that a gateway claims, and their leases when it stops."""

import asyncio
from types import SimpleNamespace

from gateway.batches.batch_claimer import BatchClaimer


class SlowStore:
    """A store of one batch, whose claims take a while."""

    def __init__(self):
        self.asked = asyncio.Event()
        self.claimed = asyncio.get_running_loop().create_future()
        self.released = []

    async def claim(self, lease_seconds):
        self.asked.set()
        return await self.claimed

    async def release(self, batch):
        self.released.append(batch.id)


async def test_a_batch_that_is_claimed_while_the_gateway_stops_is_released():
    """Else no other gateway could claim it before its lease ends."""
    store = SlowStore()
    claimer = BatchClaimer(SimpleNamespace(store=store, lease_seconds=60.0), running_max=1, kept_seconds=1.0)
    claiming = asyncio.create_task(claimer.run())
    await store.asked.wait()
    await claimer.drain(1.0)
    asyncio.get_running_loop().call_later(0.05, store.claimed.set_result, SimpleNamespace(id="b"))
    await claimer.close()
    claiming.cancel()  # As the gateway ends its loops after that.
    await asyncio.gather(claiming, return_exceptions=True)
    assert store.released == ["b"]
