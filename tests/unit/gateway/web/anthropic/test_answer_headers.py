"""Headers of answers of the Messages API, made from those that OpenAI's API has."""

from datetime import UTC, datetime

import pytest

from gateway.web.anthropic import answer_headers


def test_limits_have_anthropics_names_and_points_in_time():
    now = datetime(2026, 11, 22, 3, 0, 0, tzinfo=UTC)
    got = answer_headers.anthropic_headers(
        {"x-request-id": "req-1", "x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "6m1.5s"},
        now,
    )
    assert got["request-id"] == got["x-request-id"] == "req-1"
    assert got["anthropic-ratelimit-tokens-remaining"] == "5"
    assert got["anthropic-ratelimit-tokens-reset"] == "2026-11-22T03:06:01.500Z"


@pytest.mark.parametrize(("text", "expected"), [("12ms", 0.012), ("1.5s", 1.5), ("6m0s", 360.0), ("", 0)])
def test_durations_are_read_as_openai_writes_them(text, expected):
    assert answer_headers.duration_seconds(text) == pytest.approx(expected)
