"""The frame filter with frames of a hostile worker: the time for each is bounded by its length.

The frames are as long as frames may be. Work that grows with the square of their length would take hours.
"""

import pytest

from gateway.domain.answer_tally import AnswerTally
from gateway.relay.frame_filter import FRAME_BYTES_MAX, FrameFilter
from gateway.relay.sse_payloads import SsePayloadReader

pytestmark = pytest.mark.timeout(60)

CHOICE = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]'
USAGE = b',"usage":{"prompt_tokens":3,"completion_tokens":2}'


def repeated(piece, beginning=CHOICE, end=b"}\n\n"):
    """Return a frame that consists of one piece, again and again."""
    return beginning + piece * ((FRAME_BYTES_MAX - 100) // len(piece)) + end


USAGES = {
    "empty usages": repeated(b',"usage":{}'),
    "usages in lines": repeated(USAGE + b"}\n", end=b"\n\n"),
    "usages that do not end": repeated(b',"usage":{', end=b"\n\n"),
    "usages of parts": repeated(b',"usage":{{}'),
    "fields after a usage": repeated(b',"a":{}', CHOICE + USAGE),
    "strings after a usage": repeated(b',"usage":{},"a":"b"'),
    "an end that is missing": repeated(b',"usage":{}', end=b"\n\n"),
    "choices without an index": repeated(b',"choices":[{},"usage":{}'),
}


@pytest.mark.parametrize("frame", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("answers", [1, 2])
def test_a_frame_of_many_usages_is_read_once(frame, answers):
    frames = FrameFilter(wants_usage=False, running_usage=True, answers=answers)
    frames.feed(frame)
    assert frames.feed(CHOICE + b"}\n\n") == CHOICE + b"}\n\n"
    assert frames.tally.usage is None or frames.tally.usage.prompt_tokens == 3


@pytest.mark.parametrize("first", [b'data: {"error":null}\n\n', b'data: {"usage":{}}\n\n'])
@pytest.mark.parametrize("frame", [b"\n\n", b"a\n\n", b'data: {"x":1}\n\n'])
def test_very_many_short_frames_are_passed_on(first, frame):
    chunk = first + frame * (FRAME_BYTES_MAX // len(frame))
    assert FrameFilter(wants_usage=True).feed(chunk) == chunk


def test_the_usage_of_each_choice_is_read_of_the_frame_that_it_stands_in():
    frames = [
        b'data: {"choices":[{"index":%d,"delta":{}}],"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n'
        % (index, tokens)
        for index, tokens in ((0, 1), (3, 5), (0, 4), (3, 6))
    ]
    tally = AnswerTally()
    tally.read_usage(b"".join(frames))
    assert tally.usage is not None
    assert (tally.usage.prompt_tokens, tally.usage.completion_tokens) == (7, 10)


@pytest.mark.parametrize("event", [b":\n\n", b"\n\n", b"event: ping\n\n"])
def test_events_without_data_have_no_payload(event):
    reader = SsePayloadReader()
    assert reader.feed(event * (FRAME_BYTES_MAX // len(event)) + b"data: {}\n\n") == [b"{}"]


@pytest.mark.parametrize("step", [4096, 2 * FRAME_BYTES_MAX], ids=["in pieces", "at once"])
def test_an_error_that_is_too_long_to_be_read_does_not_reach_the_client(step):
    sent = (
        b'data: {"error": {"message": "http://10.0.0.1 '
        + b"x" * (FRAME_BYTES_MAX + 10)
        + b'"}}\n\ndata: {}\n\n'
    )
    frames = FrameFilter(wants_usage=True)
    assert b"".join(frames.feed(sent[at : at + step]) for at in range(0, len(sent), step)) == b""
    assert frames.error is not None
    assert not frames.ended


def test_a_long_frame_that_reports_no_error_passes():
    sent = b'data: {"error": null, "choices": ["' + b"x" * FRAME_BYTES_MAX + b'"]}\n\n'
    frames = FrameFilter(wants_usage=True)
    assert b"".join(frames.feed(sent[at : at + 4096]) for at in range(0, len(sent), 4096)) == sent
    assert frames.error is None


@pytest.mark.parametrize("answers", [1, 2])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "frame by frame"])
def test_a_stream_whose_frames_count_tokens_has_ended_once_every_choice_has_its_finish_reason(
    answers, at_once
):
    frames = FrameFilter(wants_usage=True, answers=answers, running_usage=True)
    choice = b'data: {"choices":[{"index":%d,"delta":{},"finish_reason":%b}]' + USAGE + b"}\n\n"
    sent = [choice % (index, reason) for index in range(answers) for reason in (b"null", b'"stop"')]
    for piece in [b"".join(sent[:-1])] if at_once else sent[:-1]:
        frames.feed(piece)
    assert not frames.ended
    frames.feed(sent[-1])
    assert frames.ended
    frames.feed(b'data: {"choices":[]' + USAGE + b"}\n\n")
    assert frames.ended


@pytest.mark.parametrize("answers", [1, 2])
@pytest.mark.parametrize("running", [True, False], ids=["running usage", "final usage"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "frame by frame"])
@pytest.mark.parametrize("wants_usage", [True, False], ids=["usage wanted", "usage withheld"])
def test_each_frame_that_passes_is_counted_once(answers, running, at_once, wants_usage):
    frames = FrameFilter(wants_usage=wants_usage, answers=answers, running_usage=running)
    first, last = CHOICE + b"}\n\n", b'data: {"choices":[]' + USAGE + b"}\n\n"
    sent = [first, CHOICE + (USAGE if running else b"") + b"}\n\n", b"data: [1]\r\n\r\n", first, last]
    sent.append(b"data: [DONE]\n\n")
    for piece in [b"".join(sent)] if at_once else sent:
        frames.feed(piece)
    assert frames.tally.frames == (5 if wants_usage else 4)
