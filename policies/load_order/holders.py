"""The holders on a shortlist: those workers that hold a part of a prompt, by about what the request costs there."""

from collections.abc import Iterator
from typing import TypeVar

from policies.routing.compute_price import ComputePrice
from policies.routing.cost_options import CostOptions
from policies.routing.memory_price import delayed_streams, memory_ms
from workers.worker import Speed

HOLDERS_MAX = 8
"""Holders of a part of the prompt on one shortlist."""

LONGEST_MAX = 2
"""Of these, the holders of the longest part, whatever their load."""

EXAMINED_MAX = 48
"""The most holders that are compared."""

WEIGHTS = CostOptions()

Holder = TypeVar("Holder")


def chosen_holders(known: list[tuple[float, int, Holder]]) -> Iterator[Holder]:
    """Return the holders to rank, some of them twice; `known`: cost, place and holder, the longest part first."""
    for _, _, holder in known[:LONGEST_MAX]:
        yield holder
    if len(known) > HOLDERS_MAX:
        known.sort()
    for _, _, holder in known[:HOLDERS_MAX]:
        yield holder


def holder_ms(
    speed: Speed,
    *,
    ahead: int,
    streams: int,
    kv_tokens: int,
    kv_tokens_max: int | None,
    uncached: int,
    output_tokens: int,
    price: ComputePrice,
) -> float:
    """Return about what a request costs on a holder, in milliseconds; the routing policy computes it exactly.

    `ahead`: tokens queued there and not computed.
    """
    delayed = delayed_streams(streams, kv_tokens, kv_tokens_max)
    paid = 1 + price.on(speed.ms_per_token, streams) + WEIGHTS.delay_weight * delayed
    ms = speed.ms_per_token * ahead + paid * (speed.fixed_ms + speed.ms_per_token * uncached)
    if streams:
        ms += speed.step_ms
    return ms + memory_ms(
        WEIGHTS.memory_weight,
        tokens_new=uncached,
        output_tokens=output_tokens,
        step_ms=speed.step_ms,
        kv_tokens=kv_tokens,
        kv_tokens_max=kv_tokens_max,
    )
