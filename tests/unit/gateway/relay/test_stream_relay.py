"""Pieces of a stream that are sent where they arrive: which are, and which are left to the request's task."""

from types import SimpleNamespace

import pytest

from gateway.domain.errors import StreamInterrupted, WorkerError
from gateway.relay.frame_filter import FrameFilter
from gateway.relay.stream_relay import StreamRelay
from tests.fakes.stub_adapter import streamed

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\n'
LEFT_TO_THE_TASK = {
    "an end": b"data: [DONE]\n\n",
    "an error": b'data: {"error":{"message":"no memory"}}\n\n',
    "frames before an error": TEXT + b'data: {"error":{"message":"no memory"}}\n\n',
}


class Client:
    """An exchange that keeps what is written at once."""

    def __init__(self):
        self.writes, self.writes_at_once, self.error = [], True, None

    def write_at_once(self, data):
        if self.error is not None:
            raise self.error
        self.writes.append(data)


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def frames():
    return FrameFilter(wants_usage=False)


@pytest.fixture
def stream(client, frames):
    progress = SimpleNamespace(trace=None, output_sent=lambda: None)
    return StreamRelay(streamed(), client, frames, progress, lambda: None)


def test_frames_are_sent_where_they_arrive_and_counted(stream, client, frames):
    assert stream.take(TEXT)
    assert stream.take(TEXT + TEXT)
    assert client.writes == [TEXT, TEXT + TEXT]
    assert frames.tally.frames == 3


def test_a_frame_that_the_client_does_not_get_is_taken_all_the_same(stream, client):
    assert stream.take(USAGE)
    assert client.writes == []


@pytest.mark.parametrize("piece", LEFT_TO_THE_TASK.values(), ids=LEFT_TO_THE_TASK)
def test_a_piece_that_needs_a_decision_is_left_to_the_task(stream, client, piece):
    assert not stream.take(piece)
    assert client.writes == []


def test_no_piece_is_sent_to_a_client_that_has_to_be_waited_for(stream, client):
    client.writes_at_once = False
    assert not stream.take(TEXT)
    assert client.writes == []


def test_the_rest_of_a_frame_is_left_to_the_task_which_may_find_an_error_in_it(stream):
    assert stream.take(TEXT + b'data: {"err')
    assert not stream.take(b'or":{"message":"no memory"}}\n\n')


async def test_a_frame_that_the_clients_api_cannot_express_is_left_to_the_task_which_raises_the_reason(
    stream, client
):
    client.error = WorkerError()
    assert not stream.take(TEXT)
    with pytest.raises(StreamInterrupted):
        await stream.run(SimpleNamespace(generates=True), {})
