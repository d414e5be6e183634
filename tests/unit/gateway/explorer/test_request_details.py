"""The details of one finished request."""

import msgspec
import pytest

from gateway.explorer.request_details import for_tenant, request_details
from gateway.telemetry.progress import Progress
from gateway.telemetry.request_events import QueueWait
from policies.routing.protocol import Route
from tests.fakes.clock import FakeClock


@pytest.fixture
def record():
    """A request that waited, failed at one worker, and was answered by another after that."""
    clock = FakeClock()
    progress = Progress("req-1", "chat/completions", clock, lambda: 1_700_000_000.0)
    progress.tenant, progress.asked, progress.model, progress.stream = "acme", "gpt", "m", True
    clock.advance(0.1)
    progress.queued_at = clock()
    progress.wait = QueueWait(
        reason="2 came before it", requests_ahead=2, tokens_ahead=300, tenants_ahead=(("globex", 2),)
    )
    clock.advance(2.0)
    progress.queued_until = clock()
    progress.attempt_failed("w1", "timed_out")
    progress.ranking = (
        Route(worker="w0", cost_ms=12.3456, matched_tokens=64, reason="64 of 100 tokens held"),
    )
    progress.assign_worker("w0", by_shadow=False, predicted_tokens=64, predicted_ttft_seconds=0.2)
    clock.advance(0.3)
    progress.worker_ttft_seconds = 0.3
    progress.output_sent()
    clock.advance(0.6)
    return progress.record()


def test_the_stages_fill_the_whole_time_of_the_request(record):
    details = request_details(record, "here/1", slow=True)
    assert [(step.name, step.start_ms, step.ms) for step in details.steps] == [
        ("prepare", 0.0, pytest.approx(100)),
        ("queue", pytest.approx(100), pytest.approx(2000)),
        ("first_token", pytest.approx(2100), pytest.approx(300)),
        ("answer", pytest.approx(2400), pytest.approx(600)),
    ]
    assert details.ms == pytest.approx(3000)


def test_marked_steps_stand_in_place_of_the_stages(record):
    start = record.started_at
    marked = msgspec.structs.replace(record, steps=(("tokenise", start + 0.25, start + 0.5),))
    details = request_details(marked, "here/1", slow=False)
    assert [(step.name, step.start_ms, step.ms) for step in details.steps] == [("tokenise", 250.0, 250.0)]


def test_the_details_have_why_it_waited_and_how_the_workers_ranked(record):
    details = request_details(record, "here/1", slow=True)
    assert details.wait.reason == "2 came before it"
    assert details.wait.tenants_ahead == {"globex": 2}
    (route,) = details.ranking
    assert (route.worker, route.cost_ms, route.reason) == ("w0", 12.346, "64 of 100 tokens held")
    (failed,) = details.failed_attempts
    assert (failed.worker, failed.why, failed.at_ms) == ("w1", "timed_out", pytest.approx(2100))
    assert msgspec.json.decode(msgspec.json.encode(details), type=type(details)) == details


def test_a_tenant_gets_neither_workers_nor_other_tenants(record):
    text = msgspec.json.encode(for_tenant(request_details(record, "here/1", slow=True))).decode()
    for hidden in ("w0", "w1", "globex", "here/1"):
        assert hidden not in text
    assert "timed_out" in text
    assert "2 came before it" in text


def test_an_unknown_model_name_is_not_kept(record):
    details = request_details(msgspec.structs.replace(record, model=""), "here/1", slow=False)
    assert details.asked == ""
