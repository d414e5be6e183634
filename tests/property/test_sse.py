"""Streams cut anywhere: what the client gets does not depend on where chunks begin and end."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.sse import FrameFilter

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
spaces = st.sampled_from([(",", ":"), (", ", ": ")])


@st.composite
def streams(draw):
    """Frames of an answer, with contents that try to look like usage, ends of frames, or the end of the stream."""
    tricks = st.sampled_from(
        ['"usage":{', "\n\n", "data: [DONE]\n\n", '{"usage": {"prompt_tokens": 1}}', "\r\n\r\n"]
    )
    contents = draw(st.lists(st.one_of(texts, tricks), min_size=1, max_size=6))
    separators, end = draw(spaces), draw(st.sampled_from([b"\n\n", b"\r\n\r\n"]))
    frames = [
        {"choices": [{"delta": {"content": text}, "finish_reason": None}], "usage": None} for text in contents
    ]
    frames.append({"choices": [], "usage": USAGE})
    data = [b"data: " + json.dumps(frame, separators=separators).encode() + end for frame in frames]
    return data, b"data: [DONE]" + end


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


def run(chunks: list[bytes], *, wants_usage: bool) -> tuple[bytes, FrameFilter]:
    frames = FrameFilter(wants_usage=wants_usage)
    passed = b"".join(frames.feed(chunk) for chunk in chunks)
    return passed + frames.end(), frames


places = st.lists(st.integers(0, 10_000), max_size=12)


@given(stream=streams(), places=places)
def test_a_client_that_asks_for_usage_gets_every_byte(stream, places):
    frames, done = stream
    whole = b"".join(frames) + done
    passed, read = run(cut(whole, places), wants_usage=True)
    assert passed == whole
    assert read.usage is not None
    assert read.usage.cached_tokens == 4


@given(stream=streams(), places=places)
def test_a_client_that_does_not_ask_gets_all_but_the_usage_frame(stream, places):
    frames, done = stream
    passed, read = run(cut(b"".join(frames) + done, places), wants_usage=False)
    assert passed == b"".join(frames[:-1]) + done
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (7, 3)


@given(stream=streams(), places=places)
def test_frames_are_counted_once_each(stream, places):
    frames, done = stream
    _, read = run(cut(b"".join(frames) + done, places), wants_usage=True)
    assert read.frames == len(frames)


@given(stream=streams(), places=places, lost=st.integers(1, 200))
def test_a_stream_that_breaks_off_has_passed_on_whole_frames_only(stream, places, lost):
    frames, done = stream
    whole = b"".join(frames) + done
    filter_ = FrameFilter(wants_usage=True)
    passed = b"".join(filter_.feed(chunk) for chunk in cut(whole[:-lost], places))
    ends = {0}
    for frame in [*frames, done]:
        ends.add(max(ends) + len(frame))
    assert len(passed) in ends


def test_usage_on_the_last_content_frame_is_read_and_passed_on():
    frame = (
        b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    )
    passed, read = run([frame], wants_usage=False)
    assert passed == frame
    assert read.usage.completion_tokens == 2


def test_comments_pass():
    passed, _ = run([b": keep-alive\n\n", b"data: {}\n\n"], wants_usage=False)
    assert passed == b": keep-alive\n\ndata: {}\n\n"


def test_a_last_frame_without_its_end_is_passed_on():
    passed, _ = run([b'data: {"choices":[1]}\n\n', b"data: [DONE]"], wants_usage=False)
    assert passed == b'data: {"choices":[1]}\n\ndata: [DONE]'
