"""Errors of every engine get one shape, without addresses; an error in a stream ends it."""

import json

import pytest

from gateway.relay.frame_filter import FrameFilter
from gateway.relay.worker_errors import StreamError, WorkerErrorFields, error_in_frame, read_error


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        ({"error": {"message": "no", "type": "t", "param": "n", "code": "c"}}, "no", "n", "c"),
        ({"error": {"message": "no", "code": 400}}, "no", None, None),
        ({"object": "error", "message": "no", "code": 400}, "no", None, None),
        ({"error": "no http://w:1/ at all"}, "no ... at all", None, None),
        ({"detail": "x"}, "x", None, None),
        ({"detail": [{"loc": []}]}, "", None, None),
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
        {"id": "x", "choices": [], "error": {"message": "http://10.0.0.1:1 died", "host": "10.0.0.1"}},
        {"code": 500, "error": "http://10.0.0.1:1 died"},
    ],
)
def test_an_error_in_a_stream_is_kept_and_ends_it(error):
    before = frame({"choices": [{"delta": {"content": 'data: {"error" at http://a/'}}]})
    frames = FrameFilter(wants_usage=True)
    passed = frames.feed(before + frame(error)[:20]) + frames.feed(frame(error)[20:] + b"data: [DONE]\n\n")
    assert passed + frames.feed(before) + frames.end() == before
    assert frames.error is not None
    assert (frames.error.refusal, frames.error.fields.message) == (None, "... died")
    assert not frames.ended


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "n must be 1", "code": 422}},
        {"object": "error", "message": "n must be 1", "code": 422},
    ],
)
def test_a_mistake_of_the_client_is_known_by_its_code(error):
    assert error_in_frame(frame(error)) == StreamError(422, WorkerErrorFields(message="n must be 1"))


def test_words_of_an_answer_are_no_error():
    text = 'data: {"error": "http://10.0.0.1:80"}\n\n'
    assert error_in_frame(frame({"choices": [{"delta": {"content": text}}]})) is None


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"delta": {"content": "a", "x": {"error": {"message": "http://a:1"}}}}], "error": None},
        {"choices": [{"delta": {"tool_calls": [{"error": "http://a:1"}]}}]},
        {"choices": [], "error": {}},
    ],
)
def test_a_field_of_that_name_inside_of_a_chunk_is_no_error(chunk):
    assert error_in_frame(frame(chunk)) is None
