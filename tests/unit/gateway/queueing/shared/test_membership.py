"""Membership: what a gateway that stops tells the others."""

import asyncio
import time

import pytest

from gateway.queueing.shared.local_placements import LocalPlacements
from gateway.queueing.shared.membership import Membership
from radix_cache.redis.call import RedisDown


class SilentStore:
    """A queue store that answers nothing, and keeps what it was asked."""

    gateway = "g"

    def __init__(self):
        self.calls = []

    def join(self, queues, lease_ms, name, places=(), services=()):
        self.calls.append("join")
        return asyncio.get_running_loop().create_future()

    async def beat(self, queues, lease_ms):
        self.calls.append(f"beat {lease_ms}")
        raise RedisDown("silent")


class Member:
    """A gateway without queues."""

    def queues(self, beside=None):
        return []


@pytest.fixture
def membership():
    made = Membership(
        SilentStore(),
        LocalPlacements(),
        on_moved=lambda: None,
        enabled=True,
        timeout_seconds=0.01,
        clock=time.monotonic,
    )
    made.attach(Member())
    return made


async def test_a_gateway_whose_join_was_not_answered_leaves_all_the_same(membership):
    """Redis may have carried out the join, and would count the gateway until its lease ends."""
    joining = asyncio.create_task(membership.run())
    while not membership._store.calls:
        await asyncio.sleep(0)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    await membership.close()
    assert membership._store.calls == ["join", "beat 0"]


async def test_a_gateway_that_has_not_joined_does_not_leave(membership):
    await membership.close()
    assert membership._store.calls == []
