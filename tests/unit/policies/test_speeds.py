"""The assumed speeds of workers while little is known of them."""

from random import Random

import pytest

from gateway.settings.types import HttpUrl
from gateway.settings.workers import WorkerSettings
from gateway.wiring.fleet import worker_of
from policies.latency_model import predicted_ttft_ms
from policies.registry import routing_policy
from policies.routing.protocol import Candidate, RouteQuery
from policies.speeds import FleetSpeeds, LearntSpeed
from radix_cache.match import WorkerId
from workers.worker import WorkerSnapshot

MODELS = frozenset({"m"})


def fleet(count=3):
    speeds, workers = FleetSpeeds(), [LearntSpeed() for _ in range(count)]
    for worker in workers:
        speeds.joined(MODELS, worker)
    return speeds, workers


def taught(speeds, workers, at, *, tokens, ttft_ms):
    speeds.learn_first_token(MODELS, workers[at], tokens=tokens, ttft_ms=ttft_ms)


def best(workers, matched):
    """Where the policy sends a prompt of 600 tokens, of which the first worker holds so many."""
    candidates = [
        Candidate(
            worker=WorkerSnapshot(id=WorkerId(f"w{at}"), speed=worker.speed),
            matched_tokens=0 if at else matched,
        )
        for at, worker in enumerate(workers)
    ]
    asked = RouteQuery(prompt_tokens=600, output_tokens=50, sequence=0, draw=0.0)
    return routing_policy("cost", {}).rank(asked, candidates, 0.0)[0].worker


@pytest.mark.parametrize("samples", [1, 3, 10])
def test_slow_first_answers_do_not_drive_a_conversation_from_the_one_worker_that_was_tried(samples):
    speeds, workers = fleet()
    for _ in range(samples):
        taught(speeds, workers, 0, tokens=600, ttft_ms=900.0)
    assert best(workers, matched=500) == "w0"


def test_one_stalled_answer_among_equal_workers_moves_no_request():
    random = Random(4)
    speeds, workers = fleet()
    for number in range(60):
        tokens = random.randrange(100, 2000)
        taught(speeds, workers, number % 3, tokens=tokens, ttft_ms=(30 + 0.2 * tokens) * random.gauss(1, 0.1))
    taught(speeds, workers, 0, tokens=600, ttft_ms=20_000.0)
    assert best(workers, matched=400) == "w0"


def test_a_worker_that_is_really_slower_is_found_out():
    random = Random(5)
    speeds, workers = fleet()
    for number in range(300):
        tokens, slow = random.randrange(100, 4000), 4 if number % 3 == 0 else 1
        taught(speeds, workers, number % 3, tokens=tokens, ttft_ms=slow * (20 + 0.1 * tokens))
    assert predicted_ttft_ms(workers[0].speed, 2000) == pytest.approx(880, rel=0.3)
    assert predicted_ttft_ms(workers[1].speed, 2000) == pytest.approx(220, rel=0.3)
    assert best(workers, matched=200) != "w0"


def test_a_worker_that_joins_counts_as_fast_as_the_others_until_it_is_measured():
    speeds, workers = fleet(1)
    for tokens in (100, 2000) * 100:
        taught(speeds, workers, 0, tokens=tokens, ttft_ms=5 + 0.02 * tokens)
        speeds.learn_step(MODELS, workers[0], tpot_ms=4.0)
    late = LearntSpeed()
    speeds.joined(MODELS, late)
    assert late.speed.ms_per_token == pytest.approx(workers[0].speed.ms_per_token, rel=0.1)
    assert late.speed.step_ms == pytest.approx(4.0, rel=0.1)
    assert late.fit.samples == 0


def test_workers_of_another_model_teach_nothing():
    speeds, workers = fleet(1)
    other = LearntSpeed()
    for _ in range(50):
        speeds.learn_first_token(frozenset({"tiny"}), other, tokens=100, ttft_ms=1.0)
    taught(speeds, workers, 0, tokens=100, ttft_ms=30.0)
    assert workers[0].speed.ms_per_token > 0.09


def test_a_rating_is_taken_for_the_speed_until_answers_are_measured():
    rated, other = LearntSpeed(rated_ms_per_token=0.5), LearntSpeed()
    assert (rated.speed.ms_per_token, rated.fit.ms_per_token) == (0.5, 0.5)
    assert rated.speed.fixed_ms == other.speed.fixed_ms
    speeds, random = FleetSpeeds(), Random(6)
    speeds.joined(MODELS, rated)
    speeds.joined(MODELS, other)
    for _ in range(50):
        tokens = random.randrange(100, 4000)
        taught(speeds, [other, rated], 0, tokens=tokens, ttft_ms=30 + 0.05 * tokens)
    assert other.speed.ms_per_token == pytest.approx(0.05, rel=0.2)
    assert rated.speed.ms_per_token == pytest.approx(0.5)
    for _ in range(500):
        tokens = random.randrange(100, 4000)
        taught(speeds, [rated, other], 0, tokens=tokens, ttft_ms=30 + 0.2 * tokens)
    assert rated.speed.ms_per_token == pytest.approx(0.2, rel=0.1)


def test_a_worker_that_joins_with_a_rating_begins_with_it_and_with_what_is_learnt_of_others():
    speeds, workers = fleet(1)
    for tokens in range(100, 4000, 50):
        taught(speeds, workers, 0, tokens=tokens, ttft_ms=80 + 0.2 * tokens)
    joined = LearntSpeed(rated_ms_per_token=0.01)
    speeds.joined(MODELS, joined)
    assert joined.speed.ms_per_token == pytest.approx(0.01)
    assert joined.speed.fixed_ms == pytest.approx(80, rel=0.3)


def test_a_cold_prompt_goes_to_the_worker_that_is_rated_faster():
    slow, fast = LearntSpeed(rated_ms_per_token=1.0), LearntSpeed(rated_ms_per_token=0.05)
    assert best([slow, fast], matched=0) == "w1"


def test_a_worker_of_the_settings_begins_at_its_rating():
    rated = WorkerSettings(
        id="w", kind="vllm", url=HttpUrl("http://localhost:1"), prefill_tokens_per_second=4000
    )
    assert worker_of(rated).speed.ms_per_token == 0.25
    unrated = WorkerSettings(id="w", kind="vllm", url=HttpUrl("http://localhost:1"))
    assert worker_of(unrated).speed == LearntSpeed().speed


def test_routing_begins_with_the_speed_that_an_engine_reports():
    speeds, workers = fleet(2)
    speeds.reported(MODELS, workers[0], 0.01)
    assert (workers[0].speed.ms_per_token, workers[0].fit.ms_per_token) == (0.01, 0.01)
    assert workers[1].speed == LearntSpeed().speed
    assert best(workers, matched=0) == "w0"


def test_the_reported_speed_counts_among_the_answers_while_they_are_few():
    speeds, workers = fleet(1)
    taught(speeds, workers, 0, tokens=600, ttft_ms=900.0)
    speeds.reported(MODELS, workers[0], 0.02)
    assert workers[0].speed.ms_per_token < 0.05
    assert workers[0].fit.samples == 1


def test_an_operators_rating_stands_above_the_one_that_the_engine_reports():
    speeds, rated = FleetSpeeds(), LearntSpeed(rated_ms_per_token=0.5)
    speeds.reported(MODELS, rated, 0.01)
    assert rated.speed.ms_per_token == 0.5
