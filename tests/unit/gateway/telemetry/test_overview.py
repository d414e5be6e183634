"""The overview: totals and the last minute of each tenant."""

import json

import pytest

from gateway.telemetry.overview import Overview
from tests.fakes.running_account import answered, progress


def test_the_overview_drops_minutes_but_not_totals(clock):
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
