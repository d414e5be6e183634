"""The outcome of a finished request."""

import pytest

from gateway.telemetry.outcome import outcome_of
from gateway.telemetry.progress import Progress
from tests.fakes.clock import FakeClock


@pytest.mark.parametrize(
    ("code", "status", "outcome"),
    [
        ("ok", 200, "ok"),
        ("client_closed", 499, "left"),
        ("rate_limit_exceeded", 429, "refused"),
        ("worker_error", 502, "failed"),
        ("stream_interrupted", 200, "failed"),
    ],
)
def test_the_outcome_separates_failures_from_refusals(code, status, outcome):
    progress = Progress("req-1", "chat/completions", FakeClock(), lambda: 0.0)
    progress.fail(code, status)
    assert outcome_of(progress.record()) == outcome
