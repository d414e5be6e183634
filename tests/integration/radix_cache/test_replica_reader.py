"""The replica's reader when changes come late, or faster than it can follow."""

import asyncio
import time
from array import array
from uuid import uuid4

import pytest

from radix_cache.blocks import BlockHasher
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from radix_cache.shared.replica_reader import ReplicaReader
from tests.fakes.replica import replica

BOUNDS = {"blocks_max": 100_000, "predicted_seconds": 60.0, "idle_seconds_max": 3600.0}
SPACE = Namespace(model="m", block_size=1)
W = WorkerId("w")


def path(number):
    return BlockHasher(block_size=1, salt=b"s").of_tokens(array("I", [number, number + 1]))


@pytest.fixture
async def pair(valkey, monkeypatch, request):
    """Two replicas: one writes, the other listens and compares every `param` seconds.

    What the listener hears is kept from it while `held_back` is a list.
    """
    state = {"held_back": None}
    hear = ReplicaReader._on_message

    def held(self, channel, data):
        if state["held_back"] is None or self is not state["listener"]:
            hear(self, channel, data)
        else:
            state["held_back"].append((channel, data))

    monkeypatch.setattr(ReplicaReader, "_on_message", held)
    keys = Keys(prefix=f"t{uuid4().hex}", shards=1)
    teller, listener = [
        await replica(valkey.url, keys, time.monotonic, check_seconds=request.param, **BOUNDS)
        for _ in range(2)
    ]
    state["listener"] = listener.reader
    teller.index.enrol(W, "one")
    await teller.arrived()
    async with asyncio.timeout(60):
        while W not in teller.index.replica.tenures or W not in listener.index.replica.tenures:
            await asyncio.sleep(0.01)
    yield teller, listener, state
    for each in (teller, listener):
        await each.close()


@pytest.mark.parametrize("pair", [3600.0], indirect=True)
async def test_a_backlog_of_what_was_read_from_the_log_is_passed_over(pair):
    """Else each old message would cost a question, more would come meanwhile, and it would never end."""
    teller, listener, state = pair
    state["held_back"] = []
    for number in range(0, 1000, 2):
        teller.index.hold(SPACE, path(number), W)
    await teller.arrived()
    asked, ask = [], listener.scripts.ask
    listener.reader._redis = Asking(ask, asked)
    (_, *rest), state["held_back"] = state["held_back"], None
    assert len(rest) >= 499
    for channel, data in rest:
        listener.reader._on_message(channel, data)
    await listener.arrived()
    async with asyncio.timeout(60):
        while listener.reader._inbox:
            await asyncio.sleep(0.01)
    assert listener.index.replica.blocks == teller.index.replica.blocks == 1000
    assert len(asked) <= 4
    # What comes afterwards is heard as ever.
    teller.index.hold(SPACE, path(5000), W)
    await teller.arrived()
    await listener.arrived()
    assert listener.index.replica.blocks == 1002
    assert len(asked) <= 4


@pytest.mark.parametrize("pair", [0.2], indirect=True)
async def test_what_the_copy_shows_is_reported_while_changes_arrive(pair, monkeypatch):
    teller, listener, _ = pair
    told, rounds = ReplicaReader._apply_message, 0

    async def slowly(self, *what):
        nonlocal rounds
        await told(self, *what)
        if self is listener.reader:
            rounds += 1
            teller.index.hold(SPACE, path(10 * rounds), W)
            while rounds < 10_000 and not self._inbox and not over.is_set():
                await asyncio.sleep(0.001)

    over, seen = asyncio.Event(), []
    monkeypatch.setattr(listener.reader, "_changed", lambda: seen.append(rounds))
    monkeypatch.setattr(ReplicaReader, "_apply_message", slowly)
    teller.index.hold(SPACE, path(1_000_000), W)
    async with asyncio.timeout(60):
        while not (seen and seen[-1] > 20):
            await asyncio.sleep(0.01)
    over.set()
    assert rounds > 20


@pytest.mark.parametrize("pair", [3600.0], indirect=True)
@pytest.mark.parametrize("comes", [True, False], ids=["late", "never"])
async def test_only_a_message_that_does_not_come_by_the_next_look_is_read_from_the_log(pair, comes):
    """Else every look at a busy index would read all of it: slower than its messages, which wait meanwhile."""
    teller, listener, state = pair
    reader, state["held_back"] = listener.reader, []
    teller.index.hold(SPACE, path(1), W)
    await teller.arrived()
    async with asyncio.timeout(60):
        while not state["held_back"]:
            await asyncio.sleep(0.01)
    await reader._compare(at_once=False)
    assert (reader.gaps, listener.index.replica.blocks) == (0, 0)
    (message,), state["held_back"] = state["held_back"], None
    if comes:
        reader._on_message(*message)
        await listener.arrived()
    await reader._compare(at_once=False)
    assert (reader.gaps, listener.index.replica.blocks) == (0 if comes else 1, 2)


class Asking:
    """A caller of which each question is noted."""

    def __init__(self, ask, asked):
        self._ask, self._asked = ask, asked

    def ask(self, *command):
        self._asked.append(command)
        return self._ask(*command)
