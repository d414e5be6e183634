"""Events of the Messages API from chat completions: blocks, order, usage, errors, wherever chunks are cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import (
    InternalError,
    StreamInterrupted,
    TenantQueueFull,
    Unauthenticated,
    WorkerError,
)
from gateway.web.anthropic import answers
from gateway.web.anthropic.events import MessageEvents
from gateway.web.error_response import anthropic_error_body
from gateway.web.openai import chat_completions


def chunk(delta=None, finish=None, usage=None, **more):
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish, **more}]
    return b"data: " + json.dumps({"model": "m", "choices": choices, "usage": usage}).encode() + b"\n\n"


USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}
STREAM = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "hm"}),
    chunk({"content": "Let me "}),
    chunk({"content": "look."}),
    chunk({"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "f", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    chunk({"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "g", "arguments": "{}"}}]}),
    chunk({}, "tool_calls"),
    chunk(usage=USAGE),
    b"data: [DONE]\n\n",
]


def events(text):
    """(event name, decoded data) of each."""
    found = []
    for part in text.decode().split("\n\n")[:-1]:
        name, data = part.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in found)
    return found


def translated(*pieces, stops=()):
    stream = MessageEvents("msg_1", "m", 7, stops)
    return events(stream.begin() + b"".join(map(stream.feed, pieces)) + stream.end())


def test_an_answer_that_ends_in_its_thinking_has_no_other_content():
    whole = message(finish="length", reasoning_content="hm", content=None)
    assert [block["type"] for block in whole["content"]] == ["thinking"]
    blocks = [
        data for name, data in translated(STREAM[1], chunk({}, "length")) if name == "content_block_start"
    ]
    assert [block["content_block"]["type"] for block in blocks] == ["thinking"]


def message(finish="stop", stops=(), usage=USAGE, choice=None, **said):
    body = {
        "model": "m",
        "choices": [{"message": said, "finish_reason": finish, **(choice or {})}],
        "usage": usage,
    }
    return answers.message_object(
        chat_completions.decode_chat_completion(json.dumps(body).encode()), "msg_1", stops
    )


def test_events_come_in_the_order_that_clients_rely_on():
    got = translated(*STREAM)
    assert [name for name, _ in got] == [
        *("message_start", "ping"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    starts = [data for name, data in got if name == "content_block_start"]
    assert [(start["index"], start["content_block"]["type"]) for start in starts] == [
        (0, "thinking"),
        (1, "text"),
        (2, "tool_use"),
        (3, "tool_use"),
    ]
    assert [start["content_block"].get("id") for start in starts[2:]] == ["c0", "c1"]


def test_thinking_is_signed_since_clients_send_no_other_back():
    deltas = [data["delta"] for name, data in translated(*STREAM) if name == "content_block_delta"]
    assert deltas[:2] == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": answers.SIGNATURE},
    ]
    (block,) = message(reasoning="hm", finish="length")["content"]
    assert block == {"type": "thinking", "thinking": "hm", "signature": answers.SIGNATURE}


def test_the_first_event_has_the_gateways_count_and_the_last_the_workers():
    got = dict(translated(*STREAM))
    assert got["message_start"]["message"]["usage"]["input_tokens"] == 7
    assert got["message_delta"]["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 6,
        "output_tokens": 4,
    }
    assert got["message_delta"]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@given(cuts=st.lists(st.integers(0, sum(map(len, STREAM))), max_size=12))
def test_where_a_stream_is_cut_makes_no_difference(cuts):
    whole = b"".join(STREAM)
    edges = [0, *sorted(cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(edges)]
    assert translated(*pieces) == translated(*STREAM)


def test_a_call_that_goes_on_after_another_has_begun_still_reaches_its_block():
    late = chunk({"tool_calls": [{"index": 0, "function": {"arguments": " "}}]})
    deltas = [
        d["index"] for name, d in translated(*STREAM[:8], late, *STREAM[8:]) if name == "content_block_delta"
    ]
    assert deltas[-1] == 2


def test_a_stream_without_an_end_or_with_an_error_is_interrupted():
    with pytest.raises(StreamInterrupted):
        translated(*STREAM[:3])
    with pytest.raises(StreamInterrupted):
        translated(b'data: {"error": {"message": "out of memory at 10.0.0.1"}}\n\n')
    with pytest.raises(WorkerError):
        translated(b"data: no json\n\n")


def test_a_whole_answer_has_the_same_blocks():
    calls = [{"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    got = message("tool_calls", reasoning="hm", content="Look.", tool_calls=calls)
    assert [block["type"] for block in got["content"]] == ["thinking", "text", "tool_use"]
    assert got["content"][2] == {"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1}}
    assert (got["type"], got["role"], got["stop_reason"]) == ("message", "assistant", "tool_use")
    assert got["usage"]["cache_read_input_tokens"] == 6


@pytest.mark.parametrize(
    ("finish", "more", "stops", "reason", "sequence"),
    [
        ("stop", {}, ["END"], "end_turn", None),
        ("stop", {"stop_reason": "END"}, ["END"], "stop_sequence", "END"),
        ("stop", {"matched_stop": "END"}, ["END"], "stop_sequence", "END"),
        ("stop", {"stop_reason": "<|im_end|>"}, ["END"], "end_turn", None),
        ("stop", {"matched_stop": 151645}, ["END"], "end_turn", None),
        ("length", {}, [], "max_tokens", None),
        ("content_filter", {}, [], "refusal", None),
    ],
)
def test_the_stop_reason_is_one_of_anthropics(finish, more, stops, reason, sequence):
    got = message(finish, stops, choice=more, content="x")
    assert (got["stop_reason"], got["stop_sequence"]) == (reason, sequence)


def test_an_empty_answer_is_one_empty_text():
    assert message(content="")["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("body", [b"{}", b"[]", b"", b"\xff", b'{"choices": [{"delta": {}}]}'])
def test_what_is_no_answer_is_the_workers_failure(body):
    with pytest.raises(WorkerError):
        answers.message_object(chat_completions.decode_chat_completion(body), "msg_1", ())


def test_errors_have_anthropics_shape():
    for error, kind in (
        (Unauthenticated(), "authentication_error"),
        (InternalError("r"), "api_error"),
        (TenantQueueFull(1.0), "rate_limit_error"),
    ):
        body = json.loads(anthropic_error_body(error, "req-1"))
        assert (body["type"], body["error"]["type"], body["request_id"]) == ("error", kind, "req-1")
        assert set(body["error"]) == {"type", "message"}
