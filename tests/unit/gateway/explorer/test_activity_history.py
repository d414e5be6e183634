"""Samples of the activity: what one gateway takes, and the sum of several."""

import msgspec
import pytest

from gateway.explorer.activity_history import SAMPLES_MAX, ActivityHistory, ActivitySample
from gateway.queueing.shared.keys import QueueKeys
from gateway.telemetry.overview import Overview
from gateway.telemetry.progress import Progress
from tests.fakes.clock import FakeClock


class Silent:
    """Redis that is never asked, since there is one gateway."""


def answered(clock):
    """The record of a stream whose first byte came after half a second."""
    made = Progress("req-1", "chat/completions", clock, clock)
    made.tenant, made.model, made.stream, made.answered = "acme", "m", True, True
    clock.advance(0.5)
    made.output_sent()
    return made.record()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def overview(clock):
    return Overview(clock)


@pytest.fixture
def history(overview, clock):
    return ActivityHistory(
        overview, lambda: (3, 5), Silent(), QueueKeys("t"), "one", lambda: 1, lambda: 1_000_000.0 + clock()
    )


async def test_a_sample_is_about_what_came_since_the_one_before(history, overview, clock):
    overview.observe(answered(clock))
    history.sample()
    clock.advance(10)
    overview.observe(answered(clock))
    overview.observe(answered(clock))
    history.sample()
    clock.advance(10)
    history.sample()
    samples = (await history.report()).data
    assert [sample.requests for sample in samples] == [1, 2, 0]
    assert [sample.ttft_ms is None for sample in samples] == [False, False, True]
    assert [sample.at % 10 for sample in samples] == [0, 0, 0]
    assert {(sample.waiting, sample.streams) for sample in samples} == {(3, 5)}


async def test_only_the_last_hour_is_kept(history, clock):
    for _ in range(SAMPLES_MAX + 5):
        history.sample()
        clock.advance(10)
    assert len((await history.report()).data) == SAMPLES_MAX


async def test_samples_of_one_moment_at_several_gateways_are_summed(history, monkeypatch):
    def sample(at, requests, ttft_ms):
        return ActivitySample(
            at=at,
            requests=requests,
            errors=1,
            prompt_tokens=10,
            cached_tokens=5,
            output_tokens=2,
            ttft_ms=ttft_ms,
            waiting=1,
            streams=2,
        )

    async def gather():
        return [
            msgspec.json.encode([sample(10, 1, 100.0), sample(20, 4, None)]),
            msgspec.json.encode([sample(10, 3, 200.0)]),
            b"not a report",
        ]

    monkeypatch.setattr(history._reports, "gather", gather)
    first, second = (await history.report()).data
    assert (first.at, first.requests, first.errors, first.streams) == (10, 4, 2, 4)
    assert first.ttft_ms == pytest.approx(175.0)
    assert (second.requests, second.ttft_ms) == (4, None)
