"""The holders on a shortlist: those workers that hold a part of a prompt, by about what the request costs there."""

from collections.abc import Iterator
from typing import TypeVar

from policies.routing.compute_price import ComputePrice
from policies.routing.cost_options import DECODE_SLOWDOWN_MS, RUNNING_MAX, CostOptions
from workers.worker import Speed

HOLDERS_MAX = 8
"""Holders of a part of the prompt on one shortlist."""

LONGEST_MAX = 2
"""Of these, the holders of the longest part, whatever their load."""

EXAMINED_MAX = 48
"""Holders that are looked at to choose from."""

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
    kv_share: float,
    uncached: int,
    output_tokens: int,
    price: ComputePrice,
) -> float:
    """Return about what a request costs on a holder, in milliseconds; the routing policy computes it exactly.

    `ahead`: tokens queued there and not computed; `kv_share`: how full its KV memory is.
    """
    running = min(streams / max(1.0, kv_share), RUNNING_MAX)
    paid = 1 + price.on(speed.ms_per_token, streams) + WEIGHTS.harm * running
    ms = speed.ms_per_token * ahead + paid * (speed.fixed_ms + speed.ms_per_token * uncached)
    if streams:
        ms += speed.step_ms
    if kv_share:
        ms += WEIGHTS.decode_weight * output_tokens * DECODE_SLOWDOWN_MS * min(1.0, kv_share)
    return ms
