"""Gateways' parts of the shared queue, with their loops and without the rest of a gateway."""

import asyncio
import itertools
import time
from contextlib import asynccontextmanager

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.queue_store import QueueStore
from gateway.queueing.shared.shared_queue import SharedQueue
from gateway.queueing.shared.turn_stream import TurnReader
from policies.registry import tenant_order
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.fixed_window import FixedWindow

WINDOW = 100
names = itertools.count()


class House:
    """One queue, how often its waiting requests had to ask again, and what it was told of others and of tenants."""

    def __init__(self):
        self.moves = 0
        self.loads = {}
        self.tags = {}

    def queues(self, beside=None):
        return ["m"]

    def update_others(self, loads, *, all_workers):
        self.loads = dict(loads) if all_workers else self.loads | loads

    def forget_others(self):
        self.loads = {}

    def adopt_tag(self, queue, tenant, virtual_time, finish):
        self.tags[queue, tenant] = virtual_time, finish

    def debts(self):
        return []

    def queue_moved(self):
        self.moves += 1


@asynccontextmanager
async def member(url, prefix, *, timeout_seconds=2.0, clock=time.monotonic, in_cell=False):
    """A gateway's part of the queue, with its loops."""
    scripts, house, keys = ScriptCaller(url), House(), QueueKeys(prefix)
    queue = SharedQueue(
        QueueStore(scripts, keys, f"{next(names):016x}", FixedWindow(WINDOW)),
        tenant_order("fcfs"),
        enabled=True,
        timeout_seconds=timeout_seconds,
        clock=clock,
        in_cell=in_cell,
    )
    queue.attach(house)
    turns = TurnReader(
        scripts,
        keys.turns,
        on_turn=queue.requests.turn_granted,
        on_gateways=queue.membership.gateways_changed,
        on_missed=queue.requests.ask_again,
        handlers={},
    )
    loops = [asyncio.create_task(loop) for loop in (queue.membership.run(), turns.run())]
    try:
        yield queue, house
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await queue.close()
        await scripts.close()


async def until(true):
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.002)
