"""The dispatch window of a worker: when a request may leave the gateway's queue for that worker.

Requests wait in the gateway, where the order is the gateway's, and not in the engine's own queue. A worker is sent
at most `window_tokens` uncached prompt tokens at a time; what has no space in the window waits.

gateway/queueing/shared/lua/queue.lua repeats these rules inside Redis.
"""

HOLD_MS = 10.0
"""A saving below this many milliseconds is not worth a wait."""

PASSED_MAX = 8
"""Waiting requests that are passed over, because they would rather wait for their own worker, before the search for
one that fits a free worker ends."""

PASSED_OF_FLOW_MAX = 4
"""Of these, at most so many of one tenant and service class."""

LOOK_TOKENS, LOOK_SHARE = 1024, 1 / 16
"""Free space of so many tokens, or of this share of the window, is enough to rank the waiting requests again."""


def fits_window(tokens_queued: int, uncached_tokens: int, window_tokens: int) -> bool:
    """Return whether a prefill of `uncached_tokens` may be sent to a worker with `tokens_queued` ahead of it.

    An idle worker takes anything, also a prompt that is longer than the window.

    A token that the worker has already computed counts as queued until the request's first token. Not to count it,
    where KV is not short, gained 6 % of mean TTFT near saturation (a public trace, 8 workers, three seeds) and cost
    tenants that are flooded by others 7 % of theirs (four seeds), as more of the flood was in the engines' queues.
    """
    return tokens_queued == 0 or tokens_queued + uncached_tokens <= window_tokens


def worth_ranking_again(tokens_queued: int, least_tokens: int, window_tokens: int) -> bool:
    """Return whether a worker has space for one of the waiting requests, so that they should be ranked again.

    `least_tokens` is the smallest number of uncached prompt tokens among the waiting requests.

    Every waiting request is ranked anew each time, which costs most of what a request costs: with hundreds of
    requests waiting for a full fleet, ranking after every answer means several rankings for each request. More of a
    prompt may be cached by now than on arrival, so that a prompt fits where none seems to. That possibility is
    worth a ranking once LOOK_TOKENS are free, or LOOK_SHARE of a narrow window, but not before.
    """
    worth = min(LOOK_TOKENS, int(LOOK_SHARE * window_tokens))
    return fits_window(tokens_queued, min(least_tokens, worth), window_tokens)


def close_enough_to_best(cost_ms: float, least_ms: float, hold: float | None) -> bool:
    """Return whether a worker of cost `cost_ms` is good enough not to wait for the best one, of cost `least_ms`.

    `hold` is how much more expensive the worker may be, as a share of the least cost; with None any worker will do.
    A difference below HOLD_MS is never worth a wait.

    Measured by simulated queues (policies/simulation/turn_queue.py) on a public trace and generated ones: 0 in
    place of 0.1 is as good or better everywhere (TTFT of agents -18 %, goodput near saturation +3 %), None costs a
    sixth of the hit ratio. What did not pay, or not enough: to let later requests into the window that an earlier
    one waits for (2 % of TTFT), to keep long prompts to some of the workers (nothing).
    """
    return hold is None or cost_ms <= least_ms + max(abs(least_ms) * hold, HOLD_MS)
