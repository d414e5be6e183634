"""The shadow policy: its counts, its share of decisions, and its regret by the latency model."""

import pytest

from gateway.routing.shadow_policy import ShadowPolicy
from policies.registry import routing_policy
from policies.routing.checked_policy import PolicyContractBroken
from policies.routing.protocol import Candidate, Route
from workers.worker import Speed, WorkerSnapshot

SPEED = Speed(fixed_ms=10.0, ms_per_token=0.1)


def candidate(name: str, *, queued: int = 0, matched: int = 0) -> Candidate:
    return Candidate(
        worker=WorkerSnapshot(id=name, tokens_queued=queued, speed=SPEED), matched_tokens=matched
    )


def ranking(*names: str, matched: int = 0) -> tuple[Route, ...]:
    return tuple(Route(worker=name, cost_ms=0.0, matched_tokens=matched, reason="") for name in names)


def shadow() -> ShadowPolicy:
    return ShadowPolicy(routing_policy("round_robin", {}), 0.0)


def test_a_slower_choice_is_regretted_by_the_difference_of_predictions():
    seen = shadow()
    fleet = [candidate("a"), candidate("b", queued=5000)]
    seen.compare(1000, fleet, ranking("a", "b"), ranking("b", "a"))
    assert (seen.compared, seen.differed) == (1, 1)
    assert seen.regret_seconds == pytest.approx(0.5)
    assert seen.gain_seconds == 0


def test_a_faster_choice_is_a_gain():
    seen = shadow()
    fleet = [candidate("a"), candidate("b", matched=800)]
    seen.compare(1000, fleet, ranking("a", "b"), ranking("b", "a", matched=800))
    assert seen.gain_seconds == pytest.approx(0.08)
    assert seen.regret_seconds == 0


def test_the_same_choice_is_neither():
    seen = shadow()
    seen.compare(1000, [candidate("a")], ranking("a"), ranking("a"))
    assert (seen.compared, seen.differed, seen.regret_seconds, seen.gain_seconds) == (1, 0, 0, 0)


def test_without_a_candidate_nothing_is_counted():
    seen = shadow()
    seen.compare(1000, [], (), ())
    assert seen.compared == 0


def test_what_a_worker_has_computed_by_now_is_not_waited_for():
    seen = shadow()
    busy = Candidate(
        worker=WorkerSnapshot(id="b", tokens_queued=5000, tokens_computed=4000, speed=SPEED), matched_tokens=0
    )
    seen.compare(1000, [candidate("a"), busy], ranking("a", "b"), ranking("b", "a"))
    assert seen.regret_seconds == pytest.approx(0.1)


def test_of_a_pair_the_worker_that_computes_the_prompt_is_compared():
    seen = shadow()
    fleet = [candidate("a"), candidate("b", queued=5000), candidate("c")]
    by_b = Route(worker="c", prefill_worker="b", cost_ms=0.0, matched_tokens=0, reason="")
    seen.compare(1000, fleet, ranking("a"), (by_b,))
    assert seen.regret_seconds == pytest.approx(0.5)


def test_failures_are_counted_and_the_first_is_logged(caplog):
    seen = shadow()
    for _ in range(3):
        seen.count_failure(PolicyContractBroken("policy x failed"))
    assert seen.failures == 3
    assert caplog.text.count("policy x failed") == 1
