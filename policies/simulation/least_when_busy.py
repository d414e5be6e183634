"""A lower bound of every request's time to first token, for gateways that keep no worker idle while requests wait.

    request 1    |====== its prompt, on a worker of its own ======|   ends no sooner than alone (least_ttft.py)
    request 2       |=========================|
    the victim              |. . . . . . . . .|==|                    with two workers: no sooner than the first end

The first requests after a pause find idle workers, one each, as long as there are more workers than requests that
may be under way. The next one finds all workers busy: an engine computes the prompts that it has begun before later
ones, in steps that nothing interrupts, so its first token comes no sooner than the first of theirs. Later requests
find the same until then. What a gateway does afterwards is its own choice, so the bound is that of a request alone
again, until all that has come must have been computed.

So this is what the engine's chunks make impossible for such a gateway. One that keeps a worker open to other
tenants, as ours does beside a flood, can pass the bound, and loses throughput while that worker is idle.

Assumes that requests without a first token are spread over as many workers as there are of them; that workers are
alike, begin with the prompts that came first, and have slots and KV memory for all of them; and that the time of a
step does not fall with its tokens or with the filled share of the KV. tests/property/test_least_when_busy.py tries
to pass the bound with gateways that choose at random.
"""

from collections.abc import Sequence
from math import inf

from policies.simulation.engines.step_time import StepTime
from policies.simulation.least_ttft import least_ttft
from policies.simulation.trace import TraceRequest


def least_ttft_when_busy(trace: Sequence[TraceRequest], times: StepTime, *, workers: int) -> list[float]:
    """Return the bound of each request, in seconds."""
    found = []
    begun: list[
        tuple[float, float]
    ] = []  # Of each request on a worker of its own: when its first token comes.
    first_end, all_end_by = -inf, -inf  # While requests find all workers busy.
    for request, alone in zip(trace, least_ttft(trace, times, workers=workers).outcomes, strict=True):
        assert alone.first_at is not None
        first_at = alone.first_at
        begun = [(soonest, latest) for soonest, latest in begun if latest > request.at]
        if request.at >= all_end_by and len(begun) < workers:
            begun.append((first_at, request.at + _longest_seconds(request.prompt_tokens, times)))
        else:
            if request.at >= all_end_by:
                first_end = min(soonest for soonest, _ in begun)
                # The last step of each may have other prompts in it.
                all_end_by = max(latest for _, latest in begun) + _longest_seconds(times.chunk_tokens, times)
                begun = []
            all_end_by += _longest_seconds(request.prompt_tokens, times, shared=True)
            first_at = max(first_at, first_end)
        found.append(first_at - request.at)
    return found


def _longest_seconds(prompt_tokens: int, times: StepTime, *, shared: bool = False) -> float:
    """Return the longest time to the first token of a prompt that an engine begins after its decode step.

    `shared`: other prompts take what its steps leave of the token budget. Streams take some of each step's budget.
    """
    steps = -(-prompt_tokens // max(1, times.chunk_tokens - times.sequences_max))
    tokens = times.chunk_tokens if shared else min(prompt_tokens, times.chunk_tokens)
    return (steps * times.prefill(tokens) + (steps + 1) * times.decode(1.0)) / 1000
