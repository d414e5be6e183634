"""What single routing policies do, and what the registry refuses."""

import pytest

from policies.registry import PolicyError, queue_policy, routing_policy
from policies.routing.protocol import Candidate, RouteQuery
from radix_cache.match import WorkerId
from workers.worker import Speed, WorkerSnapshot

SPEED = Speed(ms_per_token=0.1, fixed_ms=20, step_ms=20)


def candidate(name: str, *, matched: int = 0, speed: Speed = SPEED, **state: int) -> Candidate:
    return Candidate(worker=WorkerSnapshot(id=WorkerId(name), speed=speed, **state), matched_tokens=matched)


def query(prompt: int = 4000, sequence: int = 0, draw: float = 0.0) -> RouteQuery:
    return RouteQuery(prompt_tokens=prompt, output_tokens=100, sequence=sequence, draw=draw)


def best(policy: str, candidates: list[Candidate], asked: RouteQuery | None = None, **options: float) -> str:
    return routing_policy(policy, options).rank(asked or query(), candidates, 0.0)[0].worker


def test_round_robin_takes_turns_by_name():
    workers = [candidate("b"), candidate("c"), candidate("a")]
    order = [best("round_robin", workers, query(sequence=n)) for n in range(4)]
    assert order == ["a", "b", "c", "a"]


def test_least_work_takes_the_shortest_prefill_queue_then_the_fewest_streams():
    workers = [
        candidate("a", tokens_queued=500),
        candidate("b", tokens_queued=100, streams=9),
        candidate("c", tokens_queued=100),
    ]
    assert best("least_work", workers) == "c"


def test_least_work_draws_lots_among_equals():
    workers = [candidate("a"), candidate("b")]
    assert {best("least_work", workers, query(draw=d)) for d in (0.1, 0.9)} == {"a", "b"}


def test_affinity_prefers_the_worker_that_holds_the_prefix():
    assert best("cost", [candidate("a"), candidate("b", matched=3500)]) == "b"


def test_a_hit_off_the_gpu_is_worth_its_share():
    def far(name: str, **where: int) -> Candidate:
        return Candidate(worker=candidate(name).worker, matched_tokens=3200, **where)

    host, disk, near = far("a", host_tokens=3200), far("b", disk_tokens=3200), candidate("c", matched=2600)
    assert best("cost", [host, disk, near]) == "c"
    assert best("cost", [host, disk, candidate("c", matched=2000)]) == "a"
    assert best("cost", [host, disk], host_credit=0.1) == "b"
    (route,) = routing_policy("cost", {}).rank(query(), [host], 0.0)
    assert route.matched_tokens == 3200
    assert route.reason.startswith("3200 of 4000 tokens held (3200 off the GPU), ")


def test_a_hit_worth_less_than_the_wait_is_left():
    busy = candidate("b", matched=1000, tokens_queued=30_000, streams=4)
    assert best("cost", [candidate("a"), busy]) == "a"


def test_a_prefix_that_all_hold_does_not_send_all_to_one():
    workers = [candidate("a", matched=512, tokens_queued=2000), candidate("b", matched=512)]
    assert best("cost", workers) == "b"


def test_a_hit_of_almost_nothing_is_no_reason_to_herd():
    workers = [candidate("a", matched=64, tokens_queued=200), candidate("b"), candidate("c")]
    chosen = {best("cost", workers, query(prompt=8000, draw=d / 10)) for d in range(10)}
    assert chosen == {"b", "c"}


def test_of_equals_the_less_loaded_of_two_drawn_leads():
    workers = [candidate("a", tokens_queued=10), candidate("b")]
    assert {best("cost", workers, query(draw=d / 10)) for d in range(10)} == {"b"}


def test_running_streams_make_a_worker_dearer():
    assert best("cost", [candidate("a", streams=40), candidate("b")]) == "b"


def test_backlog_makes_computing_a_prefix_twice_dearer():
    """For this request alone the cold worker is faster; with work piled up, computing again costs everybody."""
    workers = [candidate("holder", matched=3000, tokens_queued=5000, streams=1), candidate("cold")]
    assert best("cost", workers, price_max=0.0) == "cold"
    assert best("cost", workers) == "holder"


def test_a_worker_without_room_in_its_kv_is_the_last_choice():
    full = candidate("full", kv_tokens=95_000, kv_tokens_max=100_000, matched=200)
    assert best("cost", [full, candidate("free", kv_tokens_max=100_000)]) == "free"


def test_a_faster_worker_is_worth_a_miss():
    slow = candidate("slow", matched=1000, speed=Speed(ms_per_token=1.0, fixed_ms=20, step_ms=20))
    assert best("cost", [slow, candidate("fast")]) == "fast"


def test_an_empty_prompt_and_a_match_longer_than_the_prompt_are_no_error():
    assert best("cost", [candidate("a", matched=640)], query(prompt=0)) == "a"


def test_unknown_policies_and_options_are_refused_with_what_there_is():
    with pytest.raises(
        PolicyError, match="there are chwbl, cost, least_work, p2c, product, round_robin, session"
    ):
        routing_policy("nearest", {})
    with pytest.raises(PolicyError, match="unknown field `harmm`"):
        routing_policy("cost", {"harmm": 1})
    with pytest.raises(PolicyError, match="Expected `float`"):
        routing_policy("cost", {"harm": "much"})
    with pytest.raises(PolicyError, match="there are dlpm, fifo, priority, sfq, vtc"):
        queue_policy("nearest")


def test_options_change_the_decision():
    workers = [candidate("a", streams=40), candidate("b", matched=0, tokens_queued=300)]
    assert best("cost", workers) == "b"
    assert best("cost", workers, harm=0.0) == "a"
