"""Streams cut anywhere: what the client gets does not depend on where chunks begin and end."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.token_usage import read_usage
from gateway.relay import frame_filter
from gateway.relay.frame_filter import FrameFilter

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
def test_a_client_that_requests_usage_gets_every_byte(stream, places):
    frames, done = stream
    whole = b"".join(frames) + done
    passed, read = run(cut(whole, places), wants_usage=True)
    assert passed == whole
    assert read.usage is not None
    assert read.usage.cached_tokens == 4


@given(stream=streams(), places=places)
def test_a_client_that_does_not_request_usage_gets_all_but_its_frame(stream, places):
    frames, done = stream
    passed, read = run(cut(b"".join(frames) + done, places), wants_usage=False)
    assert passed == b"".join(frames[:-1]) + done
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (7, 3)
    assert read.tally.frames == len(frames) - 1


@given(stream=streams(), places=places)
def test_frames_are_counted_once_each(stream, places):
    frames, done = stream
    _, read = run(cut(b"".join(frames) + done, places), wants_usage=True)
    assert read.tally.frames == len(frames)


@given(stream=streams(), places=places, wants_usage=st.booleans(), fails=st.booleans())
def test_pieces_that_are_taken_where_they_arrive_pass_as_all_others_do(stream, places, wants_usage, fails):
    frames, done = stream
    broken = [b'data: {"error": {"message": "out of memory"}}\n\n'] if fails else []
    chunks = cut(b"".join((*frames[:1], *broken, *frames[1:])) + done, places)
    one, other = FrameFilter(wants_usage=wants_usage), FrameFilter(wants_usage=wants_usage)
    passed = b""
    for chunk in chunks:
        plain = one.feed_plain(chunk)
        passed += one.feed(chunk) if plain is None else plain
    assert passed + one.end() == b"".join(map(other.feed, chunks)) + other.end()
    assert (one.tally.frames, one.done, one.error) == (other.tally.frames, other.done, other.error)
    assert one.usage == other.usage


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


@given(stream=streams(), places=places, longest=st.integers(0, 120))
def test_frames_that_are_too_long_pass_as_they_are_and_the_others_are_read(stream, places, longest):
    frames, done = stream
    chunks = cut(b"".join(frames) + done, places)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_filter, "FRAME_BYTES_MAX", longest)
        passed, read = run(chunks, wants_usage=True)
    assert passed == b"".join(chunks)
    assert read.tally.frames - len(frames) in (
        0,
        1,
    )  # the end of the stream, if it was too long to be known as such


def test_of_an_endless_frame_little_is_kept():
    frames, sent, passed = FrameFilter(wants_usage=False), 0, 0
    for _ in range(2000):
        passed += len(frames.feed(b"x" * 10_000))
        sent += 10_000
        assert sent - passed <= frame_filter.FRAME_BYTES_MAX + 10_000
    rest = frames.feed(
        b'\n\ndata: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\ndata: x'
    )
    assert rest == b"\n\n"
    assert frames.usage.prompt_tokens == 7
    assert frames.end() == b""


def test_a_long_frame_in_small_pieces_is_put_together_once():
    """A copy of all that came with each piece would take ten seconds of CPU."""
    frames, piece = FrameFilter(wants_usage=False), b"x" * 16
    started = time.process_time()
    for _ in range(frame_filter.FRAME_BYTES_MAX // len(piece)):
        assert frames.feed(piece) == b""
    assert len(frames.feed(b"\n\n")) == frame_filter.FRAME_BYTES_MAX + 2
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens":-1}',
        b'{"prompt_tokens":10,"completion_tokens":-5}',
        b'{"prompt_tokens":10,"completion_tokens":1099511627777}',
        b'{"prompt_tokens":1e30,"completion_tokens":1}',
        b'{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":11}}',
        b'{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":-1}}',
        b'{"prompt_tokens":"many"}',
        b'{"x":"\xff"}',
        b"{}",
    ],
)
def test_usage_that_cannot_be_is_unknown(usage):
    frame = b'data: {"choices":[],"usage":%b}\n\n' % usage
    passed, read = run([frame], wants_usage=False)
    assert read.usage is None
    assert passed in (b"", frame)
    assert read_usage(usage) is None


def test_usage_that_cannot_be_does_not_replace_what_was_known():
    _, read = run(
        [b'data: {"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n' % n for n in (1, -1)],
        wants_usage=True,
    )
    assert read.usage.completion_tokens == 1


def test_a_frame_that_is_nested_without_end_passes_as_it_came():
    frame = b'data: {"usage":{"a":' + b"[" * 100_000 + b"}}\n\n"
    passed = FrameFilter(wants_usage=False)
    assert passed.feed(frame) + passed.end() == frame
