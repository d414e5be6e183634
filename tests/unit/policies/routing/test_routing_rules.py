"""What the other rules do, each in the case that it is there for."""

from array import array
from collections import Counter
from functools import cache

import pytest

from policies.registry import OptionsInvalid, PolicyError
from policies.routing.protocol import Candidate, RouteQuery, RoutingPolicy
from policies.routing.stable_random import affinity, two_of
from policies.simulation.contenders import contender
from policies.simulation.trial import policy_of
from radix_cache.match import WorkerId
from workers.worker import Speed, WorkerSnapshot

SPEED = Speed(ms_per_token=0.1, fixed_ms=20, step_ms=20)


def candidate(name: str, *, matched: int = 0, **state: int) -> Candidate:
    return Candidate(worker=WorkerSnapshot(id=WorkerId(name), speed=SPEED, **state), matched_tokens=matched)


def query(
    prompt: int = 4000, draw: float = 0.0, blocks: tuple[int, ...] = (), session: int | None = None
) -> RouteQuery:
    return RouteQuery(
        prompt_tokens=prompt,
        output_tokens=100,
        sequence=0,
        draw=draw,
        blocks=array("Q", blocks),
        block_tokens=512,
        session=session,
    )


@cache
def rule(name: str, options: tuple[tuple[str, float], ...]) -> RoutingPolicy:
    return contender(name, dict(options))


def best(policy: str, candidates: list[Candidate], asked: RouteQuery | None = None, **options: float) -> str:
    return rule(policy, tuple(options.items())).rank(asked or query(), candidates, 0.0)[0].worker


def draws(count: int = 200) -> list[float]:
    return [at / count for at in range(count)]


def test_two_different_ones_are_drawn_and_all_pairs_alike():
    pairs = Counter(two_of(draw, 4) for draw in draws(1200))
    assert set(pairs) == {(one, other) for one in range(4) for other in range(4) if one != other}
    assert set(pairs.values()) == {100}


def test_a_worker_that_leaves_moves_only_the_keys_it_had():
    def home(key: int, names: str) -> str:
        return max(names, key=lambda name: affinity(name, key))

    keys = range(500)
    moved = [key for key in keys if home(key, "abcd") != home(key, "abc")]
    assert all(home(key, "abcd") == "d" for key in moved)
    assert 80 < len(moved) < 170


def test_p2c_never_takes_the_most_loaded_and_not_always_the_least():
    workers = [candidate("a", tokens_queued=9), candidate("b", tokens_queued=5), candidate("c")]
    chosen = Counter(best("p2c", workers, query(draw=draw)) for draw in draws())
    assert set(chosen) == {"b", "c"}
    assert chosen["c"] > chosen["b"]


def test_chwbl_sends_equal_beginnings_to_the_same_worker_and_spreads_others():
    workers = [candidate(name) for name in "abcd"]
    same = {best("chwbl", workers, query(blocks=(1, 2, 3, 4, tail), draw=tail / 99)) for tail in range(5, 50)}
    assert len(same) == 1
    spread = Counter(best("chwbl", workers, query(blocks=(1, 2, 3, at))) for at in range(400))
    assert min(spread.values()) > 60


def test_chwbl_knows_prompts_apart_that_are_shorter_than_its_key():
    workers = [candidate(name) for name in "abcd"]
    assert len({best("chwbl", workers, query(blocks=(at,))) for at in range(50)}) == 4


def test_chwbl_leaves_a_worker_that_has_more_than_its_share():
    asked = query(blocks=(1, 2, 3, 4))
    first, second = [
        route.worker for route in contender("chwbl", {}).rank(asked, [candidate(n) for n in "abc"], 0.0)
    ][:2]
    loaded = [candidate(name, streams=9 if name == first else 2) for name in "abc"]
    assert best("chwbl", loaded, asked) == second
    assert best("chwbl", loaded, asked, load_max=10) == first


def test_product_weighs_prefill_by_those_it_delays():
    assert best("product", [candidate("a", streams=9, matched=3000), candidate("b")]) == "b"
    assert best("product", [candidate("a", streams=2, matched=3000), candidate("b")]) == "a"


def test_a_session_stays_at_home_until_home_costs_too_much():
    workers = [candidate(name) for name in "abcd"]
    homes = {session: best("session", workers, query(session=session)) for session in range(40)}
    assert set(homes.values()) == set("abcd")
    for session, home in homes.items():
        matched_elsewhere = [
            candidate(n, matched=1500 if n != home else 0) for n in "abcd"
        ]  # 150 ms faster elsewhere
        assert best("session", matched_elsewhere, query(session=session)) == home
        busy = [candidate(n, tokens_queued=5000 if n == home else 0) for n in "abcd"]
        assert best("session", busy, query(session=session)) != home
        assert best("session", busy, query(session=session), patience_ms=1000) == home


def test_without_a_session_the_least_ttft_is_taken():
    workers = [candidate("a", tokens_queued=100), candidate("b", matched=500)]
    assert best("session", workers) == "b"


def test_progress_of_a_prefill_is_taken_off_what_is_ahead():
    behind = candidate("a", tokens_queued=10_000, tokens_computed=8000, streams=1)
    ahead = candidate("b", tokens_queued=5000, streams=1)
    assert best("cost", [behind, ahead]) == "a"
    assert best("cost", [candidate("a", tokens_queued=10_000, streams=1), ahead]) == "b"


def test_a_full_kv_costs_the_time_until_streams_have_made_room():
    full = {"kv_tokens": 100_000, "kv_tokens_max": 100_000, "streams": 10}
    free = {"kv_tokens": 50_000, "kv_tokens_max": 100_000, "streams": 10}
    # 4100 tokens come free in 82 ms; a prefix of 2000 saves 200.
    assert best("cost", [candidate("a", matched=2000, **full), candidate("b", **free)], harm=0) == "a"
    assert best("cost", [candidate("a", matched=200, **full), candidate("b", **free)], harm=0) == "b"


def test_sglang_takes_a_long_match_unless_streams_are_out_of_balance():
    holder = {"matched": 3000}
    assert best("sglang", [candidate("a", streams=30, **holder), candidate("b")]) == "a"
    assert best("sglang", [candidate("a", streams=40, **holder), candidate("b")]) == "b"
    assert best("sglang", [candidate("a", streams=3, matched=1000), candidate("b")]) == "b"


def test_aibrix_takes_the_longest_match_within_a_deviation_of_the_mean():
    workers = [
        candidate("a", streams=4, matched=3000),
        candidate("b", streams=3, matched=1000),
        candidate("c", streams=3),
    ]
    assert best("aibrix", workers) == "b"
    assert best("aibrix", [candidate("a", streams=3, matched=3000), *workers[1:]]) == "a"
    assert best("aibrix", [candidate("a", streams=20, matched=3000), *workers[1:]]) in "bc"


def test_llmd_filters_by_affinity_and_breaks_it_when_that_takes_too_long():
    holder = candidate("a", matched=3500, tokens_queued=20_000)
    assert best("llmd", [holder, candidate("b")], query(draw=0.5)) == "a"
    assert best("llmd", [holder, candidate("b")], query(draw=0.5), break_ms=1000) == "b"
    assert (
        best("llmd", [candidate("a", matched=3000, tokens_queued=1), candidate("b")], query(draw=0.5)) == "b"
    )


def test_dynamo_adds_decode_blocks_to_prefill_blocks():
    assert best("dynamo", [candidate("a", matched=3000, kv_tokens=4000), candidate("b")]) == "b"
    assert best("dynamo", [candidate("a", matched=3000, kv_tokens=2000), candidate("b")]) == "a"


def test_preble_exploits_a_prefix_that_is_longer_than_the_rest():
    assert best("preble", [candidate("a", matched=2100, tokens_queued=90_000), candidate("b")]) == "a"
    assert best("preble", [candidate("a", matched=1900, tokens_queued=90_000), candidate("b")]) == "b"


def test_subjects_carry_their_options_and_wrong_ones_are_refused():
    assert policy_of("cost:tie=0.1,harm=0").options.tie == 0.1
    with pytest.raises(PolicyError, match=r"there are chwbl, cost, .*sglang"):
        policy_of("nearest")
    with pytest.raises(PolicyError, match="not OPTION=VALUE"):
        policy_of("cost:tie")
    with pytest.raises(OptionsInvalid, match="unknown field `tiee`"):
        policy_of("sglang:tiee=1")


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


def test_a_hot_prefix_is_copied_as_demand_asks_and_no_further():
    """Two of four hold it, with a quarter of the streams: two are enough, were it not for a long queue."""
    holders = [candidate(name, matched=3900, tokens_queued=5000, streams=1) for name in "ab"]
    others = [candidate(name, streams=3) for name in "cd"]
    assert best("cost", [*holders, *others], copy_price=0, price_max=0) in "cd"
    assert best("cost", [*holders, *others], copy_price=5, price_max=0) in "ab"
    wanted = [candidate(name, matched=3900, tokens_queued=5000, streams=9) for name in "ab"]
    assert best("cost", [*wanted, *others], copy_price=5, price_max=0) in "cd"


def test_what_the_index_is_not_sure_of_is_priced_between_held_and_not_held():
    sure, doubted, cold = candidate("a", matched=3000), candidate("b", matched=1500), candidate("c")
    unsure = Candidate(worker=doubted.worker, matched_tokens=1500, doubted_tokens=1500)
    assert best("cost", [sure, unsure, cold]) == "a"
    assert best("cost", [unsure, cold]) == "b"
    (route,) = rule("cost", ()).rank(query(), [unsure], 0.0)
    assert "(1500 more in doubt)" in route.reason


def test_the_terms_of_a_cost_add_up_to_it():
    workers = [
        candidate("a", matched=1000, tokens_queued=4000, streams=3, kv_tokens=90_000, kv_tokens_max=91_000),
        aged("b", 2.0, streams=2),
    ]
    for route in rule("cost", ()).rank(query(session=1), workers, 0.0):
        assert route.terms.total() == route.cost_ms
        assert list(route.terms._asdict())[:2] == ["wait_ms", "own_ms"]


def aged(name: str, seconds: float, **state: int) -> Candidate:
    return Candidate(worker=WorkerSnapshot(id=WorkerId(name), speed=SPEED, age_seconds=seconds, **state))
