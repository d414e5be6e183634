"""Bounds of one search for a waiting request that fits a worker: how many requests it passes over.

passed_over.py decides when a request that was passed over is tried again.
"""

from policies.load_order.least_loaded import RANKED_MAX

PASSED_OVER_MAX = 16
"""Waiting requests that are passed over, because they would rather wait for their own worker, before the search for
one that fits a free worker ends."""

PASSED_OVER_EVERY, PASSED_OVER_OF_FLEET_MAX = 16, 128
"""In a queue of all gateways it is one for each 16 workers, where that is more, up to 128; see passed_over_max."""

PASSED_OVER_OF_FLOW_MAX = 4
"""Of these, at most so many of one tenant and service class."""


def passed_over_max(workers: int, *, awaits_one: bool = False) -> int:
    """Return how many waiting requests the queue of all gateways passes over, with so many workers.

    `awaits_one`: requests wait for workers of their own. Those whose worker is full must keep no other one idle.

    The more workers there are, the more requests wait for one that holds their prompt. With only eight passed over,
    those behind them waited beside idle workers: mean TTFT of 1,200 simulated workers at a high load was 148 ms,
    not 132, and of 2,000 workers 225, not 116. With four workers eight were too few while some have no KV memory
    left: requests that wait for those stood before all others (agents past saturation, four seeds, over the mean
    without a queue: 1.34, with 16 of them 1.00). But requests that are passed over lose their turn to others: with
    128 of them, shares on ten workers at three times their capacity were less even (0.92, not 0.98). A gateway that
    gives turns alone ranks workers at each look, so it keeps to PASSED_OVER_MAX.
    """
    if awaits_one and workers <= RANKED_MAX:
        return PASSED_OVER_OF_FLEET_MAX
    return min(PASSED_OVER_OF_FLEET_MAX, max(PASSED_OVER_MAX, workers // PASSED_OVER_EVERY))
