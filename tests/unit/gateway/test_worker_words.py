"""What workers say, as clients get it: no addresses, one shape, and no word of caches that others fill."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.sse import FrameFilter
from gateway.dispatch.worker_words import (
    MESSAGE_LENGTH_MAX,
    read_error,
    with_safe_errors,
    without_addresses,
    without_cached_tokens,
)


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
        ("max_tokens: 100 is more than 64, line 1:22", "max_tokens: 100 is more than 64, line 1:22"),
        ("version 0.6.3.post1 of 2.12.1", "version 0.6.3.post1 of 2.12.1"),
        ("expected [1, 2] or {a: b}", "expected [1, 2] or {a: b}"),
        ("x" * 10_000, "x" * MESSAGE_LENGTH_MAX),
    ],
)
def test_addresses_are_left_out_and_the_rest_stays(said, told):
    assert without_addresses(said) == told


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        ({"error": {"message": "no", "type": "t", "param": "n", "code": "c"}}, "no", "n", "c"),
        ({"error": {"message": "no", "code": 400}}, "no", None, None),
        ({"object": "error", "message": "no", "code": 400}, "no", None, None),
        ({"error": "no http://w:1/ at all"}, "no ... at all", None, None),
        ({"detail": "x"}, "", None, None),
        ([], "", None, None),
        (None, "", None, None),
    ],
)
def test_errors_of_every_engine_are_read(body, message, param, code):
    said = read_error(json.dumps(body).encode())
    assert (said.message, said.param, said.code) == (message, param, code)


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[" * 100_000])
def test_what_is_not_understood_has_no_words(body):
    assert read_error(body).message == ""


def frame(value):
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "http://10.0.0.1:1 died", "type": "x", "param": None, "code": 500}},
        {"object": "error", "message": "http://10.0.0.1:1 died", "code": 500},
    ],
)
def test_an_error_in_a_stream_is_told_in_our_shape_without_addresses(error):
    before = frame({"choices": [{"delta": {"content": 'data: {"error" at http://a/'}}]})
    frames = FrameFilter(wants_usage=True)
    passed = frames.feed(before + frame(error)[:20]) + frames.feed(frame(error)[20:]) + frames.end()
    assert passed.startswith(before)
    (told,) = [json.loads(part[6:]) for part in passed[len(before) :].split(b"\n\n") if part]
    assert told == {"error": {"message": "... died", "type": "server_error", "param": None, "code": None}}


def test_words_of_an_answer_are_never_touched():
    text = 'data: {"error": "http://10.0.0.1:80"}\n\n'
    answer = frame({"choices": [{"delta": {"content": text}}]})
    assert with_safe_errors(answer) == answer


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


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"x", b'{"usage":null}', b'{"usage":{"prompt_tokens_details":null}}']
)
def test_what_has_none_stays_as_it_was(body):
    assert without_cached_tokens(body) == body


@given(st.integers(1, 40), st.booleans())
def test_a_stream_hides_them_wherever_it_is_cut(size, wants_usage):
    text = frame({"choices": [{"delta": {"content": "a"}}]}) + frame({"choices": [], **usage()})
    frames, passed = FrameFilter(wants_usage=wants_usage, tells_cached=False), b""
    for at in range(0, len(text), size):
        passed += frames.feed(text[at : at + size])
    passed += frames.end()
    assert b"cached_tokens" not in passed
    assert (b'"usage"' in passed) is wants_usage
    assert frames.usage is not None
    assert frames.usage.cached_tokens == 8
