"""Redaction of workers' answers: no addresses, and no counts of other tenants' cached tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.frame_filter import FrameFilter
from gateway.relay.redaction import (
    MESSAGE_LENGTH_MAX,
    without_addresses,
    without_cached_tokens,
    without_transfers,
)


def frame(value):
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("cannot reach http://10.0.0.7:30000/v1 now", "cannot reach ... now"),
        ("tcp://*:5557 is taken", "... is taken"),
        ("peer 10.0.0.7:8998 is gone", "peer ... is gone"),
        ("peer 10.0.0.7.", "peer ...."),
        ("at [fd00::7]:8998", "at ..."),
        ("gpu-0.workers.svc:30000 refused", "... refused"),
        ("localhost:30001 refused", "... refused"),
        ("postgres://user:pw@db/x", "..."),
        ("Cannot connect to host vllm:8000 ssl:default", "Cannot connect to host ... ssl:default"),
        ("Cannot connect to host gpu-node-7", "Cannot connect to host ..."),
        ("gpu-node-7:30000 refused", "... refused"),
        ("decode0:30000 refused", "... refused"),
        ("ip-10-0-0-5.ec2.internal is gone", "... is gone"),
        ("w-0.vllm.svc.cluster.local is gone", "... is gone"),
        ("fd00:1::7 and fe80::1.", "... and ...."),
        ("bind failed on port 30000", "bind failed on port ..."),
        ("No such file: '/root/models/llama-3/config.json'", "No such file: '...'"),
        ('File "/usr/lib/python3.11/site-packages/vllm/engine.py", line 3', 'File "...", line 3'),
        ("see ~/.cache/huggingface/hub.", "see ..."),
        ("POST /v1/chat/completions takes no and/or, 3/4", "POST /v1/chat/completions takes no and/or, 3/4"),
        ("meta-llama/Llama-3 knows image/png at 12:30:45", "meta-llama/Llama-3 knows image/png at 12:30:45"),
        ("max_tokens:4096 c10::Error std::string", "max_tokens:4096 c10::Error std::string"),
        ("max_tokens: 100 is more than 64, line 1:22", "max_tokens: 100 is more than 64, line 1:22"),
        ("version 0.6.3.post1 of 2.12.1", "version 0.6.3.post1 of 2.12.1"),
        ("expected [1, 2] or {a: b}", "expected [1, 2] or {a: b}"),
        ("x" * 10_000, "x" * MESSAGE_LENGTH_MAX),
    ],
)
def test_addresses_are_left_out_and_the_rest_stays(said, told):
    assert without_addresses(said) == told


def test_where_workers_hand_over_blocks_is_removed_and_all_else_stays_byte_for_byte():
    at = {"remote_host": "10.0.0.7", "remote_port": 5600, "remote_engine_id": "e"}
    answer = {"id": "x", "kv_transfer_params": at, "choices": [{"x": 1.50}], "ec_transfer_params": None}
    told = without_transfers(json.dumps(answer).encode())
    assert json.loads(told) == {**answer, "kv_transfer_params": None}
    for other in ({"choices": [{"text": '"kv_transfer_params": {'}]}, {"kv_transfer_params": None}):
        body = json.dumps(other, indent=1).encode()
        assert without_transfers(body) == body


@given(st.integers(1, 80), st.booleans())
def test_it_is_removed_from_the_last_frame_of_a_stream_of_vllm(size, reports_cached_tokens):
    at = {"remote_host": "10.0.0.7", "remote_port": 5600}
    before = frame({"choices": [{"delta": {"content": '"kv_transfer_params": {'}}]})
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "kv_transfer_params": at}
    text = before + frame(last) + b"data: [DONE]\n\n"
    frames, passed = FrameFilter(wants_usage=True, reports_cached_tokens=reports_cached_tokens), b""
    for start in range(0, len(text), size):
        passed += frames.feed(text[start : start + size])
    passed += frames.end()
    assert passed.startswith(before)
    assert b"10.0.0.7" not in passed
    assert json.loads(passed.splitlines()[2][6:]) == {**last, "kv_transfer_params": None}
    assert frames.done


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 1, "created_cache_tokens": 8}}, None),
        ({"prompt_cache_hit_tokens": 1, "prompt_cache_miss_tokens": 2}, ...),
        ({"cached_tokens": 3, "prompt_tokens_details": {"audio_tokens": 1}}, {"audio_tokens": 1}),
    ],
    ids=["vLLM's", "DeepSeek's", "at the top"],
)
def test_it_is_removed_under_another_name(usage, told):
    got = json.loads(without_cached_tokens(json.dumps({"usage": {"prompt_tokens": 9, **usage}}).encode()))
    details = {} if told is ... else {"prompt_tokens_details": told}
    assert got == {"usage": {"prompt_tokens": 9, **details}}


def usage(**details):
    return {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8, **details}}}


def test_cached_tokens_go_and_the_rest_of_an_answer_stays():
    answer = {"id": "x", "choices": [], **usage(audio_tokens=1)}
    told = json.loads(without_cached_tokens(json.dumps(answer).encode()))
    assert told == {
        "id": "x",
        "choices": [],
        "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"audio_tokens": 1}},
    }
    told = json.loads(without_cached_tokens(json.dumps(usage()).encode()))
    assert told == {"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}


LLAMA_CPP = {"timings": {"cache_n": 8, "prompt_n": 1}, "prompt_progress": {"total": 9, "cache": 8}}
"""llama.cpp says so in fields of its own, with `timings_per_token` and `return_progress` in every chunk."""


def test_it_is_removed_beside_the_usage():
    for more in ({}, usage()):
        told = json.loads(without_cached_tokens(json.dumps({"id": "x", **LLAMA_CPP, **more}).encode()))
        assert told == {
            "id": "x",
            **({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}} if more else {}),
        }


@given(st.integers(1, 80))
def test_a_stream_hides_what_stands_beside_the_usage_in_every_frame(size):
    chunks = [
        {"choices": [{"delta": {"content": "a"}}], **LLAMA_CPP},
        {"choices": [], **usage(), **LLAMA_CPP},
    ]
    text = b"".join(map(frame, chunks)) + b"data: [DONE]\n\n"
    frames, passed = FrameFilter(wants_usage=True, reports_cached_tokens=False), b""
    for at in range(0, len(text), size):
        passed += frames.feed(text[at : at + size])
    passed += frames.end()
    assert passed.count(b"data: ") == 3
    assert not any(name in passed for name in (b"timings", b"prompt_progress", b"cached_tokens"))
    assert frames.usage.cached_tokens == 8
    assert frames.tally.frames == 2
    assert frames.done


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"x", b'{"usage":null}', b'{"usage":{"prompt_tokens_details":null}}']
)
def test_what_has_none_stays_as_it_was(body):
    assert without_cached_tokens(body) == body


@given(st.integers(1, 40), st.booleans())
def test_a_stream_hides_them_wherever_it_is_cut(size, wants_usage):
    text = frame({"choices": [{"delta": {"content": "a"}}]}) + frame({"choices": [], **usage()})
    frames, passed = FrameFilter(wants_usage=wants_usage, reports_cached_tokens=False), b""
    for at in range(0, len(text), size):
        passed += frames.feed(text[at : at + size])
    passed += frames.end()
    assert b"cached_tokens" not in passed
    assert (b'"usage"' in passed) is wants_usage
    assert frames.usage is not None
    assert frames.usage.cached_tokens == 8
