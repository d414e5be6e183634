"""The cost policy: hits against queues, KV and streams, in milliseconds."""

import pytest
from msgspec.structs import replace

from policies.registry import routing_policy
from policies.routing.compute_price import BACKLOG_MAX_MS, fleet_totals
from policies.routing.cost_options import RUNNING_MAX, CostOptions
from policies.routing.estimate import kv_wait_ms, own_ms, uncached_tokens, wait_ms
from policies.routing.memory_price import delayed_streams, memory_ms
from policies.routing.protocol import Candidate
from radix_cache.match import WorkerId
from tests.unit.policies.routing.candidates import SPEED, aged, best, candidate, policy, query
from workers.worker import Speed, WorkerSnapshot


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
    """For this request alone the cold worker is faster; with a backlog, computing the prefix twice delays all."""
    workers = [candidate("holder", matched=3000, tokens_queued=5000, streams=1), candidate("cold", streams=1)]
    assert best("cost", workers, backlog_ms=1e9) == "cold"
    assert best("cost", workers) == "holder"


def test_a_long_prompt_at_one_worker_raises_the_price_less_than_the_same_backlog_of_all():
    def price(*queued: int) -> float:
        fleet = [candidate(f"w{at}", tokens_queued=tokens, streams=2) for at, tokens in enumerate(queued)]
        return policy("cost", ()).rank(query(), fleet, 0.0)[0].terms.price_ms

    most = int(BACKLOG_MAX_MS / SPEED.ms_per_token)
    assert 0 < price(most, 0, 0, 0) == price(10 * most, 0, 0, 0)
    assert price(most, most, most, most) == pytest.approx(4 * price(10 * most, 0, 0, 0))


def test_requests_that_wait_at_a_worker_are_not_delayed_as_running_streams_are():
    def delay(streams: int, **kv: int) -> float:
        (route,) = policy("cost", ()).rank(query(), [candidate("a", streams=streams, **kv)], 0.0)
        return route.terms.delay_ms

    assert delay(10) == pytest.approx(10 * delay(1))
    assert delay(RUNNING_MAX) == delay(10 * RUNNING_MAX)
    # Half of what the streams need fits into the KV, so that half of them run.
    assert delay(20, kv_tokens=200_000, kv_tokens_max=100_000) == pytest.approx(delay(10))


def test_a_worker_without_room_in_its_kv_is_the_last_choice():
    full = candidate("full", kv_tokens=95_000, kv_tokens_max=100_000, matched=200)
    assert best("cost", [full, candidate("free", kv_tokens_max=100_000)]) == "free"


def test_a_faster_worker_is_worth_a_miss():
    slow = candidate("slow", matched=1000, speed=Speed(ms_per_token=1.0, fixed_ms=20, step_ms=20))
    assert best("cost", [slow, candidate("fast")]) == "fast"


def test_an_empty_prompt_and_a_match_longer_than_the_prompt_are_no_error():
    assert best("cost", [candidate("a", matched=640)], query(prompt=0)) == "a"


def test_options_change_the_decision():
    workers = [candidate("a", streams=40), candidate("b", streams=21, tokens_queued=300)]
    assert best("cost", workers) == "b"
    assert best("cost", workers, delay_weight=0.0) == "a"


def test_progress_of_a_prefill_is_taken_off_what_is_ahead():
    behind = candidate("a", tokens_queued=10_000, tokens_computed=8000, streams=1)
    ahead = candidate("b", tokens_queued=5000, streams=1)
    assert best("cost", [behind, ahead]) == "a"
    assert best("cost", [candidate("a", tokens_queued=10_000, streams=1), ahead]) == "b"


def test_a_full_kv_costs_the_time_until_streams_have_made_room():
    full = {"kv_tokens": 100_000, "kv_tokens_max": 100_000, "streams": 10}
    free = {"kv_tokens": 50_000, "kv_tokens_max": 100_000, "streams": 10}
    # 4100 tokens come free in 82 ms; a prefix of 2000 saves 200.
    free_of_charge = {"delay_weight": 0, "memory_weight": 0}
    assert (
        best("cost", [candidate("a", matched=2000, **full), candidate("b", **free)], **free_of_charge) == "a"
    )
    assert (
        best("cost", [candidate("a", matched=200, **full), candidate("b", **free)], **free_of_charge) == "b"
    )


def test_a_worker_that_has_just_joined_is_dearer_and_that_fades():
    old = candidate("a", tokens_queued=1000, streams=1)
    assert best("cost", [old, aged("b", 0.0, tokens_queued=700, streams=1)]) == "a"
    assert best("cost", [old, aged("b", 9.9, tokens_queued=700, streams=1)]) == "b"
    assert best("cost", [old, aged("b", 0.0)], slow_start_seconds=0) == "b"
    assert best("cost", [candidate("a", tokens_queued=9000, streams=9), aged("b", 0.0)]) == "b"


def test_a_fleet_that_has_just_started_is_ranked_as_any_other():
    assert best("cost", [aged("a", 0.1), aged("b", 0.0, tokens_queued=100)]) == "a"


def test_a_session_stays_where_its_prefix_is_though_estimates_waver():
    slow = Candidate(
        worker=WorkerSnapshot(id=WorkerId("a"), speed=Speed(ms_per_token=0.1, fixed_ms=22, step_ms=20)),
        matched_tokens=3900,
    )
    other = candidate("b", matched=3895)
    assert best("cost", [slow, other], query(session=7), stay=0.1) == "a"
    assert best("cost", [slow, other], query(session=None), stay=0.1) == "b"
    busy = candidate("a", matched=3900, tokens_queued=500)
    assert best("cost", [busy, other], query(session=7), stay=0.1) == "b"


def test_a_lightly_used_worker_pays_less_of_the_price_of_compute_the_fewer_streams_it_has():
    busy = [candidate(name, tokens_queued=8000, streams=8) for name in "abc"]
    prices = [
        next(
            route.terms.price_ms / route.terms.own_ms
            for route in policy("cost", ()).rank(query(), [*busy, candidate("d", streams=streams)], 0.0)
            if route.worker == "d"
        )
        for streams in (0, 1, 2, 3, 4)
    ]
    assert prices[0] == 0
    assert prices == sorted(prices)
    assert prices[3] < prices[4] == pytest.approx(4.5)


def prices(workers, **of_query):
    """Return the price of a millisecond of prefill on each worker."""
    ranking = policy("cost", ()).rank(replace(query(), **of_query), workers, 0.0)
    return {route.worker: route.terms.price_ms / route.terms.own_ms for route in ranking}


def test_requests_that_wait_in_the_gateway_make_no_worker_lightly_used():
    busy = [candidate(name, tokens_queued=8000, streams=8) for name in "abcd"]
    assert prices(busy, requests_waiting=700) == prices(busy)


def test_a_worker_that_many_requests_wait_for_is_not_lightly_used():
    busy = [candidate(name, tokens_queued=8000, streams=2, requests_awaiting=90) for name in "abc"]
    idle, awaited = (candidate("d", streams=2, requests_awaiting=waiting) for waiting in (0, 90))
    assert prices([*busy, awaited])["d"] == pytest.approx(4.5)
    assert prices([*busy, idle])["d"] < 0.5


def test_a_worker_that_is_at_home_in_another_cell_is_not_lightly_used():
    busy = [candidate(name, tokens_queued=8000, streams=8) for name in "abc"]
    routes = policy("cost", ()).rank(query(), [*busy, candidate("d", tokens_queued=9, away_tokens=9)], 0.0)
    (terms,) = (route.terms for route in routes if route.worker == "d")
    assert terms.price_ms / terms.own_ms == pytest.approx(4.5)


def test_the_longer_a_prompt_the_more_of_a_queue_it_takes_at_home_before_it_goes_away():
    home = candidate("home", tokens_queued=2000, streams=4)
    away = candidate("away", tokens_queued=1000, away_tokens=1000, streams=4)
    assert best("cost", [home, away], query(prompt=500)) == "away"
    assert best("cost", [home, away], query(prompt=4000)) == "home"


def test_a_slow_worker_is_lightly_used_with_fewer_streams_than_a_fast_one():
    busy = [candidate(name, tokens_queued=8000, streams=8) for name in "abc"]
    slow = candidate("d", streams=2, speed=Speed(ms_per_token=0.4))
    routes = policy("cost", ()).rank(query(), [*busy, slow], 0.0)
    (terms,) = (route.terms for route in routes if route.worker == "d")
    # Of the price 4.5 on a worker of mean speed, which takes 4 / 32.5 ms for a token.
    assert terms.price_ms / terms.own_ms == pytest.approx(4.5 * (4 / 32.5) / 0.4)


def test_a_token_costs_other_requests_the_same_on_a_slow_worker_as_on_a_fast_one():
    slow = Speed(ms_per_token=0.2, fixed_ms=0, step_ms=20)
    fast = Speed(ms_per_token=0.1, fixed_ms=0, step_ms=20)
    workers = [
        candidate("slow", speed=slow, tokens_queued=3000, streams=4),
        candidate("fast", speed=fast, tokens_queued=6000, streams=4),
    ]
    prices = {route.worker: route.terms.price_ms for route in policy("cost", ()).rank(query(), workers, 0.0)}
    assert prices["slow"] == pytest.approx(prices["fast"])
    assert prices["fast"] > 0


def test_under_backlog_a_slow_worker_is_taken_once_it_is_sooner_than_the_fast_one():
    slow = candidate("slow", speed=Speed(ms_per_token=0.2, step_ms=20), tokens_queued=3000, streams=4)
    fast = candidate("fast", speed=Speed(ms_per_token=0.1, step_ms=20), tokens_queued=12_000, streams=4)
    assert best("cost", [slow, fast]) == "slow"


def test_tokens_that_only_mark_a_worker_as_away_are_no_backlog_of_the_fleet():
    plain = [candidate("home", tokens_queued=500), candidate("away", tokens_queued=500)]
    marked = replace(plain[1], worker=replace(plain[1].worker, tokens_queued=10_500, away_tokens=10_000))
    assert fleet_totals([plain[0], marked]) == fleet_totals(plain)


def test_what_the_index_is_not_sure_of_is_priced_between_held_and_not_held():
    sure, doubted, cold = candidate("a", matched=3000), candidate("b", matched=1500), candidate("c")
    unsure = Candidate(worker=doubted.worker, matched_tokens=1500, doubted_tokens=1500)
    assert best("cost", [sure, unsure, cold]) == "a"
    assert best("cost", [unsure, cold]) == "b"
    (route,) = policy("cost", ()).rank(query(), [unsure], 0.0)
    assert "(1500 more in doubt)" in route.reason


def test_the_terms_of_a_cost_add_up_to_it():
    workers = [
        candidate("a", matched=1000, tokens_queued=4000, streams=3, kv_tokens=90_000, kv_tokens_max=91_000),
        aged("b", 2.0, streams=2),
    ]
    for route in policy("cost", ()).rank(query(session=1), workers, 0.0):
        assert route.terms.total() == route.cost_ms
        assert list(route.terms._asdict())[:2] == ["wait_ms", "own_ms"]


@pytest.mark.parametrize("where", [{}, {"host_tokens": 600}, {"host_tokens": 300, "disk_tokens": 500}])
@pytest.mark.parametrize(
    "state",
    [
        {},
        {"streams": 7},
        {"tokens_queued": 9000, "tokens_computed": 2500},
        {"tokens_queued": 9000, "away_tokens": 3000},
    ],
)
@pytest.mark.parametrize("kv", [{}, {"kv_tokens": 60_000}, {"kv_tokens": 99_000, "kv_tokens_max": 100_000}])
def test_the_terms_that_policies_share_are_those_of_the_estimates(where, state, kv):
    worker = candidate("a", **state, **kv).worker
    asked, one = query(), Candidate(worker=worker, matched_tokens=1000, **where)
    (route,) = policy("cost", ()).rank(asked, [one], 0.0)
    uncached = uncached_tokens(asked, one, host_credit=0.75, disk_credit=0.25)
    tokens_new = 4000 - 1000 + sum(where.values()) + 100
    assert route.terms.wait_ms == wait_ms(worker, uncached)
    assert route.terms.own_ms == own_ms(worker, uncached)
    assert route.terms.room_ms == kv_wait_ms(worker, tokens_new, 100)
    kv_tokens, kv_tokens_max = worker.kv_tokens, worker.kv_tokens_max
    assert route.terms.memory_ms == memory_ms(
        CostOptions().memory_weight,
        tokens_new=tokens_new - 100,
        output_tokens=100,
        step_ms=worker.speed.step_ms,
        kv_tokens=kv_tokens,
        kv_tokens_max=kv_tokens_max,
    )
    delayed = delayed_streams(worker.streams, kv_tokens, kv_tokens_max)
    assert route.terms.delay_ms == route.terms.own_ms * (CostOptions().delay_weight * delayed)


def test_a_shortlist_with_the_sums_of_the_fleet_costs_as_the_whole_fleet_does():
    fleet = [
        candidate(f"w{at}", matched=3500 if at < 5 else 0, tokens_queued=at * 900, streams=at % 4)
        for at in range(12)
    ]
    sums = fleet_totals(fleet)
    of_all = {route.worker: route.terms for route in policy("cost", ()).rank(query(), fleet, 0.0)}
    short = policy("cost", ()).rank(replace(query(), fleet=sums), [fleet[0], fleet[5], fleet[9]], 0.0)
    assert {route.worker: route.terms for route in short} == {
        name: of_all[name] for name in ("w0", "w5", "w9")
    }
