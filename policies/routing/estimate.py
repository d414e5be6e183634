"""Estimates that several policies start from: pure functions of one query and one candidate, in milliseconds.

The default policy writes the same terms out in `_prefills` of cost.py, to make no calls for each candidate.

wait   = s Q + d ceil((Q + N) / C)      prefill ahead of it; steps shared with R running streams (if any)
       + AWAY_RISK own                  on a worker that is at home in another cell
own    = b + s N                        its own prefill

s  ms per uncached token      Q  uncached tokens sent there and not computed yet    C  chunk budget, tokens
b  ms per request             N  uncached tokens of this prompt, at least 1         d  ms per decode step
"""

from math import ceil

from policies.routing.protocol import Candidate, RouteQuery
from workers.worker import WorkerSnapshot

AWAY_RISK = 0.5
"""Part of its own time that a request counts besides on a worker that is at home in another cell.

Another cell may send one there before the load of either is known to the other, and the later one then waits.
"""


def matched_tokens(query: RouteQuery, candidate: Candidate) -> int:
    """Return how many prompt tokens are cached on this worker and need no prefill."""
    return min(candidate.matched_tokens, query.prompt_tokens)


def uncached_tokens(
    query: RouteQuery, candidate: Candidate, *, host_credit: float = 1.0, disk_credit: float = 1.0
) -> float:
    """Return N, the prompt tokens that are left to compute on this worker, at least 1.

    Cached tokens that lie off the GPU have to be loaded: each counts as cached by its credit (0 to 1) only.
    """
    uncached = query.prompt_tokens - matched_tokens(query, candidate)
    lost = (1 - host_credit) * candidate.host_tokens + (1 - disk_credit) * candidate.disk_tokens
    return max(1.0, uncached + lost)


def queue_ms(worker: WorkerSnapshot) -> float:
    """Return the time that a worker needs for the prefill that is ahead of a new request."""
    return worker.speed.ms_per_token * (worker.tokens_queued - worker.tokens_computed)


def wait_ms(worker: WorkerSnapshot, uncached: float) -> float:
    """Return the time until the request's own prefill begins, and what running streams take of its steps."""
    wait = queue_ms(worker)
    if worker.streams:
        ahead = worker.tokens_queued - worker.tokens_computed
        wait += worker.speed.step_ms * ceil((ahead + uncached) / worker.chunk_tokens)
    if worker.away_tokens:
        wait += AWAY_RISK * own_ms(worker, uncached)
    return wait


def own_ms(worker: WorkerSnapshot, uncached: float) -> float:
    """Return the time of the request's own prefill."""
    return worker.speed.fixed_ms + worker.speed.ms_per_token * uncached


def ttft_ms(query: RouteQuery, candidate: Candidate) -> float:
    """Return the time to the first token: wait, own prefill, and the wait for room in the KV memory."""
    worker, uncached = candidate.worker, uncached_tokens(query, candidate)
    ms = wait_ms(worker, uncached) + own_ms(worker, uncached)
    return ms + kv_wait_ms(worker, int(uncached) + query.output_tokens, query.output_tokens)


def kv_wait_ms(worker: WorkerSnapshot, tokens_new: int, output_tokens: int) -> float:
    """Return the time until streams that end have made room for `tokens_new` more tokens in the KV memory.

    A stream is assumed to live for `output_tokens` steps, so that all KV comes free within that time, and a part of
    it in the same share of the time. 0 where the capacity is not known or the KV is empty.
    """
    if not worker.kv_tokens_max or not worker.kv_tokens:
        return 0.0
    lacking = max(0, worker.kv_tokens + tokens_new - worker.kv_tokens_max)
    return output_tokens * worker.speed.step_ms * lacking / worker.kv_tokens
