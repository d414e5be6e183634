"""One request's way through the gateway stays short: the Python calls it costs, which no machine changes."""

import pytest

from tests.benchmarks.calls import counted
from tests.benchmarks.subjects import RADIXGATE, running

REQUESTS = 500


@pytest.fixture
async def profiled(tmp_path):
    """Start a gateway that profiles itself, before two scripted workers."""
    async with running((RADIXGATE,), tmp_path, profiled=tmp_path) as field:
        yield field.subjects[0], tmp_path


async def fewest(one, directory, *, stream):
    """Return the cheaper of two counts: work done once after the start, such as imports, falls into one of them."""
    counts = [await counted(one, directory, REQUESTS, stream=stream) for _ in range(2)]
    return min(counts, key=lambda calls: calls.all)


async def test_a_whole_answer_takes_few_calls(profiled):
    one, directory = profiled
    calls = await fewest(one, directory, stream=False)
    assert calls.own <= 400, calls.rooms
    assert calls.all <= 1100, calls.rooms


async def test_a_stream_of_64_chunks_takes_few_calls(profiled):
    one, directory = profiled
    calls = await fewest(one, directory, stream=True)
    assert calls.own <= 380, calls.rooms
    assert calls.all <= 1000, calls.rooms
