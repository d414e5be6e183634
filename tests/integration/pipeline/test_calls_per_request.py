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


async def test_a_whole_answer_takes_few_calls(profiled):
    one, directory = profiled
    calls = await counted(one, directory, REQUESTS, stream=False)
    assert calls.own <= 400, calls.rooms
    assert calls.all <= 1100, calls.rooms


async def test_a_stream_of_64_chunks_takes_few_calls(profiled):
    one, directory = profiled
    calls = await counted(one, directory, REQUESTS, stream=True)
    assert calls.own <= 380, calls.rooms
    assert calls.all <= 1000, calls.rooms
