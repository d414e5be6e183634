"""The Python calls of one request through the gateway are bounded; no machine changes their number."""

import pytest
import pytest_asyncio

from tests.benchmarks.calls import counted
from tests.benchmarks.subjects import RADIXGATE, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

REQUESTS = 500
COUNTS = 16


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def profiled(tmp_path_factory):
    """Start a gateway that profiles itself, before two scripted workers."""
    directory = tmp_path_factory.mktemp("profiled")
    async with running((RADIXGATE,), directory, profiled=directory) as field:
        yield field.subjects[0], directory


async def fewest(one, directory, *, stream, own, everything):
    """Return the cheapest of up to COUNTS counts, the first within the bounds.

    A busy machine only ever adds calls: fewer requests share one turn of the event loop, one write to the ledger
    and one reply of Redis. The work done once after the start, such as imports, falls into the first count.
    """
    cheapest = None
    for _ in range(COUNTS):
        calls = await counted(one, directory, REQUESTS, stream=stream)
        cheapest = calls if cheapest is None else min(cheapest, calls, key=lambda each: each.all)
        if cheapest.own <= own and cheapest.all <= everything:
            break
    return cheapest


async def test_a_whole_answer_takes_few_calls(profiled):
    one, directory = profiled
    calls = await fewest(one, directory, stream=False, own=345, everything=770)
    assert calls.own <= 345, calls.rooms
    assert calls.all <= 770, calls.rooms


async def test_a_stream_of_64_chunks_takes_few_calls(profiled):
    one, directory = profiled
    calls = await fewest(one, directory, stream=True, own=378, everything=860)
    assert calls.own <= 378, calls.rooms
    assert calls.all <= 860, calls.rooms
