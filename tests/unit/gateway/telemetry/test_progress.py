"""The account of one request: its times, counts and steps, and the record at its end."""

from itertools import pairwise

import pytest

from gateway.domain.answer_tally import AnswerTally
from gateway.domain.token_usage import TokenUsage
from gateway.telemetry.request_record import CLIENT_CLOSED
from tests.fakes.answer_tallies import tally_of
from tests.fakes.running_account import answered, progress, sent


def test_a_record_has_the_times_and_counts_of_its_request(clock):
    record = answered(clock).record()
    assert (record.ttft_seconds, record.tpot_seconds, record.seconds) == pytest.approx((0.5, 0.1, 1.0))
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (64, 40, 6)
    assert (record.predicted_tokens, record.attempts, record.worker) == (51, 1, "w0")
    assert record.dispatch_seconds == pytest.approx(0.1)


def test_steps_follow_each_other_without_a_gap(clock):
    steps = answered(clock).record().steps
    assert [name for name, _, _ in steps] == ["authenticate", "route", "first_byte", "relay"]
    assert steps[0][1] == 1_700_000_000.0
    assert all(before[2] == after[1] for before, after in pairwise(steps))


def test_time_in_the_queue_is_no_work_of_the_gateway(clock):
    made = progress(clock, queued_at=clock())
    clock.advance(3.0)
    made.queued_until = clock()
    clock.advance(0.2)
    sent(made, "", 0)
    record = made.record()
    assert (record.queue_seconds, record.dispatch_seconds) == pytest.approx((3.0, 0.2))


def test_the_text_of_a_stream_whose_worker_reported_usage_is_not_looked_into(clock):
    made = answered(clock)
    made.tally = AnswerTally()
    made.tally.unread += b'data: {"choices":[]}\n\n'
    made.record()
    assert made.tally.unread


def test_a_cut_stream_counts_its_frames_and_unknown_is_not_zero(clock):
    made = progress(clock, prompt_tokens=60, answered=True)
    made.tally = tally_of(frames=3)
    made.fail(CLIENT_CLOSED, 499)
    record = made.record()
    assert (record.output_tokens, record.prompt_tokens, record.cached_tokens) == (3, 60, None)
    assert (record.code, record.status) == ("client_closed", 499)


@pytest.mark.parametrize(
    ("estimate", "predicted", "reported", "recorded"),
    [
        (1960, 1960, 100, 100),  # a text of rare words, estimated at 20 times its length
        (1960, 980, 100, 50),
        (60, 48, 64, 51),
        (64, 64, 64, 64),
        (50, 64, 100, 100),  # beyond the estimate of the whole prompt
        (64, 48, 0, 0),
    ],
)
def test_predicted_tokens_are_of_the_prompt_as_the_worker_counts_it(
    clock, estimate, predicted, reported, recorded
):
    made = progress(clock, prompt_tokens=estimate)
    sent(made, "held", predicted)
    made.usage = TokenUsage(prompt_tokens=reported, completion_tokens=1)
    assert made.record().predicted_tokens == recorded
    assert made.record().predicted_tokens <= made.record().prompt_tokens
