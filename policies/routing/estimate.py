"""Estimates that several policies start from, in milliseconds. Plain functions of one candidate.

wait   = s Q + d ceil((Q + N) / C)      prefill ahead of it; steps shared with R running streams (if any)
own    = b + s N                        its own prefill

s  ms per uncached token      Q  uncached tokens sent there, first token still out      C  chunk budget
b  ms per request             N  uncached tokens of this prompt, at least 1             d  ms per step
"""

from math import ceil

from policies.routing.protocol import Candidate, RouteQuery
from workers.worker import WorkerSnapshot


def matched_tokens(query: RouteQuery, candidate: Candidate) -> int:
    """Prompt tokens that need no prefill there."""
    return min(candidate.matched_tokens, query.prompt_tokens)


def uncached_tokens(
    query: RouteQuery, candidate: Candidate, *, host_credit: float = 1.0, disk_credit: float = 1.0
) -> float:
    """N. What is held off the GPU has to be loaded: it counts as cached by its credit only."""
    uncached = query.prompt_tokens - matched_tokens(query, candidate)
    lost = (1 - host_credit) * candidate.host_tokens + (1 - disk_credit) * candidate.disk_tokens
    return max(1.0, uncached + lost)


def wait_ms(worker: WorkerSnapshot, uncached: float) -> float:
    """Until its own prefill begins, and what running streams take of its steps."""
    ahead = worker.tokens_queued - worker.tokens_computed
    wait = worker.speed.ms_per_token * ahead
    if worker.streams:
        wait += worker.speed.step_ms * ceil((ahead + uncached) / worker.chunk_tokens)
    return wait


def own_ms(worker: WorkerSnapshot, uncached: float) -> float:
    """Its own prefill."""
    return worker.speed.fixed_ms + worker.speed.ms_per_token * uncached


def ttft_ms(query: RouteQuery, candidate: Candidate) -> float:
    """Wait and own prefill."""
    worker, uncached = candidate.worker, uncached_tokens(query, candidate)
    ms = wait_ms(worker, uncached) + own_ms(worker, uncached)
    return ms + kv_wait_ms(worker, int(uncached) + query.output_tokens, query.output_tokens)


def kv_wait_ms(worker: WorkerSnapshot, tokens_new: int, output_tokens: int) -> float:
    """Until streams that end have made room in its KV for so many tokens more.

    Streams live for `output_tokens` steps, so that all they hold comes free in that time, and a part in its
    share of it.
    """
    if not worker.kv_tokens_max or not worker.kv_tokens:
        return 0.0
    lacking = max(0, worker.kv_tokens + tokens_new - worker.kv_tokens_max)
    return output_tokens * worker.speed.step_ms * lacking / worker.kv_tokens
