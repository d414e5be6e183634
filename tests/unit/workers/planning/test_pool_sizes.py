"""When KV is worth moving, and how many replicas each phase needs."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.workers.planning.test_capacity import LLAMA_8B, deployment
from workers.planning.capacity import InvalidFigure
from workers.planning.pool_sizes import TargetUnreachable, Traffic, kv_transfer, pool_sizes

CHAT = Traffic(
    requests_per_second=20.0,
    prompt=2048,
    output=256,
    ttft_seconds=0.5,
    tpot_seconds=0.03,
    link_bandwidth=25e9,
)


def replica(**settings: Any):
    return deployment(LLAMA_8B, "h200", **settings)


def test_moving_kv_pays_above_the_break_even_bandwidth_and_not_below():
    # At 474 TFLOP/s: KV bytes per token x FLOP/s / (2 x parameters), and attention on top of those.
    one = replica(flops_share=474 / 989.4)
    even = kv_transfer(one, 4096, 1.0).break_even_bandwidth
    assert even == pytest.approx(131_072 * 474e12 / (2 * 7.5e9), rel=0.1)
    assert kv_transfer(one, 4096, even * 1.01).pays
    assert not kv_transfer(one, 4096, even * 0.99).pays


@pytest.mark.parametrize("figure", [0, -1, float("inf"), float("nan")])
def test_traffic_and_links_that_cannot_be_are_refused_by_name(figure: float):
    for name in ("requests_per_second", "prompt", "output", "ttft_seconds", "tpot_seconds", "link_bandwidth"):
        with pytest.raises(InvalidFigure, match=name):
            replace(CHAT, **{name: figure})
    with pytest.raises(InvalidFigure, match="bandwidth"):
        kv_transfer(replica(), 4096, figure)


def test_4096_tokens_of_an_8b_model_are_512_mib_and_21_ms_at_25_gb_s():
    moved = kv_transfer(replica(), 4096, 25e9)
    assert moved.kv_bytes == 512 * 2**20
    assert moved.transfer_seconds == pytest.approx(0.0215, abs=1e-4)


def test_int8_keys_and_values_move_in_half_the_time():
    full, small = (kv_transfer(replica(kv_dtype=dtype), 4096, 25e9) for dtype in ("bf16", "int8"))
    assert full.transfer_seconds / small.transfer_seconds == pytest.approx(131_072 / 66_560)
    assert full.recompute_seconds == small.recompute_seconds


def test_both_targets_are_kept_by_the_pools_that_are_named():
    pools = pool_sizes(replica(), CHAT)
    assert pools.ttft_seconds <= CHAT.ttft_seconds
    assert pools.tpot_seconds <= CHAT.tpot_seconds
    assert pools.ratio == pools.prefill_replicas / pools.decode_replicas


@pytest.mark.parametrize("rate", [1.0, 20.0, 300.0])
def test_no_pool_could_do_with_one_replica_less(rate: float):
    one, traffic = replica(), replace(CHAT, requests_per_second=rate)
    pools = pool_sizes(one, traffic)
    service = one.prefill_seconds(2048)
    fewer = pools.prefill_replicas - 1
    if fewer:
        load = rate * service / fewer
        wait = load * service / (2 * (1 - load)) if load < 1 else float("inf")
        rest = pools.tpot_seconds + 2048 * 131_072 / 25e9 + service
        assert wait + rest > traffic.ttft_seconds
    # Little's law: so many sequences run at one moment.
    running = rate * 256 * pools.tpot_seconds
    assert (
        (pools.decode_replicas - 1) * pools.batch
        < max(1, running)
        <= max(1, pools.decode_replicas * pools.batch)
    )


def test_more_traffic_needs_more_of_both_and_longer_answers_more_decode():
    small, large = (pool_sizes(replica(), replace(CHAT, requests_per_second=rate)) for rate in (50.0, 500.0))
    assert large.prefill_replicas > small.prefill_replicas
    assert large.decode_replicas > small.decode_replicas
    talkative = pool_sizes(replica(), replace(CHAT, requests_per_second=500.0, output=2048))
    assert talkative.ratio < large.ratio


def test_a_prefix_hit_needs_fewer_prefill_replicas():
    busy = replace(CHAT, requests_per_second=300.0)
    cold, warm = (pool_sizes(replica(), replace(busy, cached=cached)) for cached in (0, 1792))
    assert warm.prefill_replicas < cold.prefill_replicas
    assert warm.decode_replicas == cold.decode_replicas


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ttft_seconds": 0.01}, "TTFT.*10 ms"),
        ({"tpot_seconds": 0.001}, "TPOT.*1.0 ms"),
        ({"prompt": 4_000_000}, "does not fit into a replica"),
        ({"link_bandwidth": 1e6}, "TTFT"),
    ],
)
def test_a_target_out_of_reach_is_named(changes: dict[str, Any], named: str):
    with pytest.raises(TargetUnreachable, match=named):
        pool_sizes(replica(), replace(CHAT, **changes))
