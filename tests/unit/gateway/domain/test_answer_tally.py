"""The tally of an answer: its text and usage, of each choice, wherever the stream was cut."""

import json

import pytest

from gateway.domain.answer_tally import RUNNING_USAGE, TEXT_BYTES_MAX, AnswerTally
from gateway.domain.token_usage import TokenUsage


def frame(index=0, text="a", usage=None, **choice):
    chunk = {"choices": [{"index": index, "delta": {"content": text}, **choice}]}
    chunk |= {"usage": usage} if usage else {}
    # Without spaces, as engines write it.
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def followed_frame(after, usage):
    """Return a frame with these fields after its usage."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}}], **usage, **after}
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def counted(output, prompt=9):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def tokens_of(*frames):
    tally = AnswerTally()
    for each in frames:
        tally.unread += each
    return tally.text_tokens(lambda text: len(text.encode()))


def test_the_last_count_of_each_choice_is_summed():
    tally = AnswerTally()
    for index, output in ((0, 1), (1, 3), (0, 5)):
        tally.read_usage(frame(index, usage=counted(output)))
    assert tally.usage.completion_tokens == 8
    assert (tally.usage.prompt_tokens, tally.usage.cached_tokens) == (9, 4)


def test_several_frames_of_one_chunk_are_separated():
    tally = AnswerTally()
    tally.read_usage(b"".join(frame(index, usage=counted(index + 1)) for index in range(4)))
    assert tally.usage.completion_tokens == 10


def test_without_any_count_there_is_no_usage():
    tally = AnswerTally()
    tally.read_usage(frame() + frame(usage={"prompt_tokens": -1}))
    assert tally.usage is None
    tally.last_counted = frame(usage=counted(3))
    assert tally.usage == TokenUsage(9, 3, tally.usage.prompt_tokens_details)


@pytest.mark.parametrize(
    "text", ["", "héé", '"content":"x"', "\\ \n", ',"usage":{"completion_tokens":9}}\n', "😀"]
)
def test_text_is_counted_as_it_reads_without_its_escapes(text):
    assert tokens_of(frame(text=text)) == len(text.encode())


def test_pieces_of_all_kinds_count_and_names_do_not():
    call = {"index": 0, "id": "call", "function": {"name": "look", "arguments": "abc"}}
    chunk = {"choices": [{"delta": {"reasoning_content": "de", "tool_calls": [call], "content": None}}]}
    assert tokens_of(b"data: %b\n\n" % json.dumps(chunk).encode()) == 5


def test_a_long_text_is_extrapolated_and_little_of_it_is_kept():
    long = tokens_of(*(frame(text="x" * 1000) for _ in range(100)))
    assert long == 100_000
    tally = AnswerTally(frame(text="x" * 10_000))
    seen = []
    assert tally.text_tokens(lambda text: seen.append(len(text)) or 7) == 9
    assert seen == [TEXT_BYTES_MAX]


def test_finish_reasons_are_counted():
    tally = AnswerTally()
    tally.unread += frame(0, finish_reason=None) + frame(1, finish_reason="stop")
    assert tally.finished == 1


def test_usage_is_taken_out_of_frames_and_never_out_of_text():
    text = frame(text=',"usage":{"a":1}}\n')
    assert RUNNING_USAGE.sub(b"", text) == text
    assert RUNNING_USAGE.sub(b"", frame(usage=counted(1)) + text) == frame() + text


@pytest.mark.parametrize(
    "after",
    [
        {"prompt_token_ids": None, "prompt_text": None},
        {"prompt_token_ids": [1, 2, 3], "prompt_text": 'a "quoted" {text}'},
        {"system_fingerprint": "fp_1", "metrics": {"seconds": 0.1}},
    ],
)
def test_usage_is_found_before_the_fields_that_vllm_writes_after_it(after):
    counted_frame = followed_frame(after, {"usage": counted(7)})
    assert RUNNING_USAGE.sub(b"", counted_frame) == followed_frame(after, {})
    tally = AnswerTally()
    tally.last_counted = counted_frame
    assert tally.usage.completion_tokens == 7
