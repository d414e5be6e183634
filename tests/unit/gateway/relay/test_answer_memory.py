"""The memory of answers that are read to their end: accounted for with their requests, and bounded."""

from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest

from gateway.domain.errors import Overloaded, StreamInterrupted
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import Surface
from gateway.relay.answer_memory import FREE_BYTES, AnswerMemory
from gateway.relay.relay import relay
from gateway.relay.stream_aggregator import INDEXED_MAX, VALUES_MAX, StreamAggregator
from gateway.telemetry.progress import Progress
from gateway.web.openai.inference_requests import decode_openai_request
from tests.fakes.stub_adapter import StubAnswer, streamed
from workers.adapter import WorkerFailed

MEMORY_BYTES = 8 * 1024**2
PIECE = b"a" * 64 * 1024
REQUEST = decode_openai_request(
    Surface.CHAT, b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
)


def frame(delta=b'"content":"hi"', more=b""):
    return b'data: {"choices":[{"index":0,"delta":{%b}}]%b}\n\n' % (delta, more)


def whole(pieces):
    return StubAnswer(pieces=(b'{"a":"', *pieces, b'"}'))


async def relayed(answer, lease):
    async def got(*_):
        pass

    client = SimpleNamespace(memory=lease, answer=got)
    await relay(answer, client, REQUEST, Progress("r", "chat", lambda: 0.0, lambda: 0.0), {})


@pytest.mark.parametrize(
    "answer",
    [
        whole([PIECE] * 100),
        streamed(*[frame(b'"content":"%b"' % PIECE)] * 100),
        streamed(*[frame(b'"x":[%b{}]' % (b"{}," * 1000))] * 100),
    ],
    ids=["whole", "text of a stream", "values of a stream"],
)
async def test_an_answer_that_takes_more_memory_than_there_is_is_the_fault_of_its_worker(answer):
    lease = MemoryLease(MemoryBudget(MEMORY_BYTES))
    lease.reserve(1000)
    with pytest.raises(WorkerFailed, match="memory"):
        await relayed(answer, lease)
    assert lease.bytes_held == 1000  # For another worker's answer.


async def test_an_answer_for_which_others_take_the_memory_may_be_requested_later():
    budget = MemoryBudget(MEMORY_BYTES)
    others = MemoryLease(budget)
    others.reserve(MEMORY_BYTES - FREE_BYTES)
    with pytest.raises(Overloaded):
        await relayed(whole([PIECE] * 40), MemoryLease(budget))
    others.release()
    lease = MemoryLease(budget)
    await relayed(whole([PIECE] * 40), lease)
    lease.release()
    assert budget.bytes_held == 0


async def test_short_answers_need_no_memory_of_the_budget():
    lease = MemoryLease(MemoryBudget(0))
    await relayed(whole([PIECE] * 10), lease)
    AnswerMemory(lease).add(FREE_BYTES)
    assert lease.bytes_held == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "delta",
    [b'"x":[%b{}]' % (b"{}," * VALUES_MAX), b'"x":[%b0]' % (b"0," * VALUES_MAX)],
    ids=["objects", "numbers"],
)
def test_a_chunk_of_too_many_values_ends_the_stream(delta):
    with pytest.raises(StreamInterrupted):
        StreamAggregator(Surface.CHAT).add(frame(delta)[6:])


def test_pieces_of_too_many_numbered_items_end_the_stream():
    items = [{"index": number} for number in range(INDEXED_MAX + 2)]
    delta = msgspec.json.encode({"x": items})[1:-1]
    with pytest.raises(StreamInterrupted):
        StreamAggregator(Surface.CHAT).add(frame(delta)[6:])


def test_the_memory_of_a_stream_grows_with_what_is_kept_of_it():
    aggregator = StreamAggregator(Surface.CHAT)
    sizes = []
    for _ in range(50):
        aggregator.add(frame(more=b',"id":"x","created":1')[6:])
        sizes.append(aggregator.bytes_kept)
    growth = {after - before for before, after in pairwise(sizes[1:])}
    assert len(growth) == 1
    assert growth.pop() < 100
