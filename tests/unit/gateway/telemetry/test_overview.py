"""The overview: totals and the last minute of each tenant."""

import json

import pytest

from gateway.domain.token_usage import PromptDetails, TokenUsage
from gateway.telemetry.overview import Overview
from gateway.telemetry.request_record import Progress
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


def progress(clock, **state):
    made = Progress("req-1", "chat/completions", clock, lambda: 1_700_000_000.0)
    made.tenant, made.key_id, made.model, made.stream = "acme", "k1", "m", True
    for name, value in state.items():
        setattr(made, name, value)
    return made


def sent(made, reason, predicted_tokens):
    made.assign_worker(
        "w0", by_shadow=False, reason=reason, predicted_tokens=predicted_tokens, predicted_ttft_seconds=0.3
    )
    made.mark_dispatched()


def answered(clock):
    """A stream: 0.5 s to its first token, 1.0 s in all, 6 tokens, 40 of 64 prompt tokens cached."""
    made = progress(clock, prompt_tokens=60)
    made.mark("authenticate")
    clock.advance(0.1)
    made.mark("route")
    sent(made, "48 of 60 tokens held", 48)
    clock.advance(0.4)
    made.mark("first_byte")
    made.answered = True
    made.output_sent(1)
    clock.advance(0.5)
    made.output_sent(5)
    made.mark("relay")
    made.usage = TokenUsage(
        prompt_tokens=64, completion_tokens=6, prompt_tokens_details=PromptDetails(cached_tokens=40)
    )
    return made


def test_the_overview_forgets_minutes_but_not_totals(clock):
    overview = Overview(clock)
    overview.observe(answered(clock).record())
    clock.advance(61)
    shown = overview.shown(overview.tenants["acme"])
    assert (shown["total"]["requests"], shown["minute"]["requests"]) == (1, 0)
    assert shown["total"]["hit_ratio"] == pytest.approx(40 / 64)
    assert json.dumps(overview.shown(overview.all))


def test_the_total_is_that_of_every_request_however_the_seconds_pass(clock):
    overview, record = Overview(clock), answered(clock).record()
    refused = progress(clock)
    refused.fail("overloaded", 503)
    for step in (0.0, 0.3, 0.9, 59.0, 1.0, 61.0, 0.0, 200.0):
        clock.advance(step)
        overview.observe(record)
        overview.observe(refused.record())
    shown = overview.shown(overview.tenants["acme"])
    total = overview.tenants["acme"].total
    assert (total.requests, total.errors, total.refused) == (16, 8, 8)
    assert (total.prompt_tokens, total.cached_tokens, total.output_tokens) == (8 * 64, 8 * 40, 8 * 6)
    assert shown["total"] == total.shown()
    assert shown["minute"]["requests"] == 2
    assert overview.workers["w0"].total.requests == 8
