"""Messages to and from Envoy about one request."""

import pytest

from gateway.endpoint_picker import ext_proc_pb2 as messages
from gateway.endpoint_picker.envoy_request import PIECE_BYTES_MAX, EnvoyRequest, header_dict
from tests.fakes.scripted_envoy import request_headers


class Recorder:
    """Keeps what is sent to Envoy."""

    def __init__(self):
        self.sent = []

    async def write(self, message):
        self.sent.append(message)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * PIECE_BYTES_MAX])
async def test_a_long_body_is_sent_in_pieces_of_which_only_the_last_ends_it(size):
    recorder, body = Recorder(), bytes(range(256)) * (size // 256 + 1)
    await EnvoyRequest(recorder, messages.ProcessingRequest(), 1.0).pick("10.0.0.7:80", {}, [body[:size]])
    pieces = [
        message.request_body.response.body_mutation.streamed_response
        for message in recorder.sent
        if message.HasField("request_body")
    ]
    assert b"".join(piece.body for piece in pieces) == body[:size]
    assert [piece.end_of_stream for piece in pieces] == [*[False] * (len(pieces) - 1), True]
    assert max(len(piece.body) for piece in pieces) <= PIECE_BYTES_MAX


def test_headers_are_found_by_any_spelling_and_keep_bytes_that_are_no_text():
    headers = header_dict(
        messages.HeaderMap(
            headers=[
                messages.HeaderValue(key="authorization", raw_value=b"Bearer \xff"),
                messages.HeaderValue(key="x-a", value="1"),
                messages.HeaderValue(key="x-a", raw_value=b"2"),
            ]
        )
    )
    assert headers["Authorization"].encode("utf-8", "surrogateescape") == b"Bearer \xff"
    assert headers.getall("X-A") == ["1", "2"]


async def test_the_subset_is_read_as_a_list_or_as_text():
    listed = request_headers({}, subset=["10.0.0.7:80", "10.0.0.8:80"])
    text = request_headers({}, subset=[])
    hint = text.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({"x-gateway-destination-endpoint-subset": "10.0.0.7:80, 10.0.0.8:80"})
    both = frozenset({"10.0.0.7:80", "10.0.0.8:80"})
    assert [EnvoyRequest(None, first, 1.0).subset for first in (listed, text)] == [both, both]
    assert EnvoyRequest(None, request_headers({}, subset=[]), 1.0).subset == frozenset()
    assert EnvoyRequest(None, request_headers({}), 1.0).subset is None
