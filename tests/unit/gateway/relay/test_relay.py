"""A relayed stream: which of its bytes are written when."""

from types import SimpleNamespace

import pytest

from gateway.domain.errors import StreamInterrupted
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.relay.relay import relay
from tests.fakes.stub_adapter import StubAnswer, streamed

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Client:
    """An exchange that keeps what is written."""

    writes_at_once = False

    def __init__(self):
        self.writes = []
        self.memory = MemoryLease(MemoryBudget(0))

    async def begin(self, status, content_type, headers):
        self.writes.append("head")

    async def write(self, data):
        self.writes.append(data)

    async def end(self, last=b""):
        self.writes.append(("end", last))


def a_request():
    return SimpleNamespace(
        stream=True, generates=True, include_usage=True, answers=1, running_usage=False, surface="chat"
    )


def a_progress():
    return SimpleNamespace(trace=None, output_sent=lambda: None, id="r", worker="w")


async def written(answer):
    client = Client()
    await relay(answer, client, a_request(), a_progress(), {})
    return client.writes


async def test_the_last_bytes_leave_together_with_the_end_of_the_stream():
    answer = streamed(TEXT + DONE)
    answer.complete = True
    assert await written(answer) == ["head", ("end", TEXT + DONE)]


async def test_bytes_do_not_wait_for_an_end_that_has_not_arrived():
    answer = streamed(TEXT, DONE)
    assert await written(answer) == ["head", TEXT, DONE, ("end", b"")]


async def test_bytes_before_the_end_do_not_wait_for_it():
    class LateEnd(StubAnswer):
        complete = False

        async def chunks(self):
            yield TEXT
            self.complete = True
            yield DONE

    assert await written(LateEnd(content_type="text/event-stream")) == ["head", TEXT, ("end", DONE)]


async def test_a_stream_that_has_arrived_without_its_end_is_interrupted():
    answer = streamed(TEXT)
    answer.complete = True
    with pytest.raises(StreamInterrupted):
        await written(answer)


async def test_frames_are_offered_once_the_client_has_the_first_ones():
    class Offering(StubAnswer):
        take = None

        def offer(self, take):
            client.writes.append("offers")
            self.take = take

        async def chunks(self):
            yield TEXT
            assert self.take(TEXT)
            assert not self.take(DONE)
            yield DONE

    class Direct(Client):
        writes_at_once = True

        def write_at_once(self, data):
            self.writes.append(("at once", data))

    client = Direct()
    answer = Offering(content_type="text/event-stream")
    await relay(answer, client, a_request(), a_progress(), {}, on_begun=lambda: client.writes.append("begun"))
    assert client.writes == [
        "head",
        ("at once", TEXT),
        "begun",
        "offers",
        ("at once", TEXT),
        DONE,
        ("end", b""),
    ]
