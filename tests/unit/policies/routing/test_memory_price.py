"""The price of KV memory: what a request pays for the memory that it holds, and whom a prefill delays."""

import pytest

from policies.routing.memory_price import CROWDED, delayed_streams, memory_ms
from tests.unit.policies.routing.candidates import best, candidate, policy, query
from workers.worker import Speed

FAST, SLOW = Speed(ms_per_token=0.05, step_ms=15), Speed(ms_per_token=0.1, step_ms=30)


def memory_of(**state):
    (route,) = policy("cost", ()).rank(query(), [candidate("a", **state)], 0.0)
    return route.terms.memory_ms


def test_memory_is_cheap_while_there_is_plenty_and_dear_where_it_is_scarce():
    quarter, half, whole = (
        memory_of(kv_tokens=at, kv_tokens_max=100_000) for at in (25_000, 50_000, 100_000)
    )
    assert half == pytest.approx(4 * quarter)
    assert whole == pytest.approx(4 * half)
    assert memory_of(kv_tokens=200_000, kv_tokens_max=100_000) == whole


def test_a_request_pays_for_the_time_that_it_holds_memory():
    state = {"kv_tokens": 80_000, "kv_tokens_max": 100_000}
    assert memory_of(speed=SLOW, **state) == pytest.approx(2 * memory_of(speed=FAST, **state))


def test_a_request_pays_for_the_part_of_the_memory_that_it_takes():
    small, large = (
        {"kv_tokens": 40_000, "kv_tokens_max": 50_000},
        {"kv_tokens": 80_000, "kv_tokens_max": 100_000},
    )
    assert memory_of(**small) == pytest.approx(2 * memory_of(**large))
    assert memory_of(matched=2050, **large) == pytest.approx(memory_of(**large) / 2)


def test_memory_of_unknown_size_has_no_price():
    assert memory_of(kv_tokens=80_000) == 0
    assert memory_of(kv_tokens_max=100_000) == 0


def test_a_fast_worker_with_scarce_memory_is_left_to_those_that_hold_their_prefix_there():
    fast = {"speed": FAST, "kv_tokens": 90_000, "kv_tokens_max": 100_000, "streams": 10}
    slow = candidate("slow", speed=SLOW, kv_tokens=20_000, kv_tokens_max=100_000, streams=10)
    assert best("cost", [candidate("fast", **fast), slow]) == "slow"
    assert best("cost", [candidate("fast", **fast), slow], memory_weight=0) == "fast"
    assert best("cost", [candidate("fast", matched=3900, **fast), slow]) == "fast"


def test_a_prefill_delays_streams_the_more_the_scarcer_their_memory_is():
    half, whole = int(CROWDED * 100_000), 100_000
    assert delayed_streams(10, half // 2, 100_000) == pytest.approx(5)
    assert delayed_streams(10, half, 100_000) == delayed_streams(10, whole, 100_000) == 10
    assert delayed_streams(10, 0, 100_000) == delayed_streams(10, half, None) == 10


def test_a_price_without_weight_is_nothing():
    state = {
        "tokens_new": 1000,
        "output_tokens": 100,
        "step_ms": 20.0,
        "kv_tokens": 9000,
        "kv_tokens_max": 9000,
    }
    assert memory_ms(0.0, **state) == 0
