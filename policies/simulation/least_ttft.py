"""`alone`, a lower bound of every request's time to first token, for any routing rule and any number of workers.

Each request is alone on an idle worker that holds every block of every request that came before it. A real request
has to compute at least the blocks that are in no earlier prompt, and the last token of its prompt, in steps of at
most `chunk_tokens`; a step takes no less time because other requests have a part in it or because streams run.

Assumes that the time of a step does not fall with its prompt tokens. tests/property/test_least_ttft.py tries to
pass the bound with every rule.
"""

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType

from policies.service_class import ServiceClass
from policies.simulation.engines.step_time import StepTime
from policies.simulation.outcome import Outcome, RunResult
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.turns.turn_taking import class_of


def least_ttft(
    trace: Sequence[TraceRequest],
    times: StepTime,
    *,
    workers: int,
    classes: Mapping[str, ServiceClass] = MappingProxyType({}),
) -> RunResult:
    """Return the bound as the outcomes of a run; it is no bound of the time between output tokens.

    With service classes, requests that are late in it are late with every routing rule.
    """
    known: set[int] = set()
    outcomes = []
    for request in trace:
        held = next(
            (at for at, block in enumerate(request.blocks) if block not in known), len(request.blocks)
        )
        cached = min(held * BLOCK_TOKENS, request.prompt_tokens - 1)
        first_at = request.at + least_prefill_ms(request.prompt_tokens - cached, times) / 1000
        service_class = class_of(request, classes)
        outcomes.append(
            Outcome(
                tenant=request.tenant,
                arrived_at=request.at,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                first_at=first_at,
                cached_tokens=cached,
                service_class=service_class.name if service_class is not None else "",
                target_seconds=service_class.ttft_seconds if service_class is not None else None,
            )
        )
        known.update(request.blocks)
    return RunResult(
        outcomes=tuple(outcomes), seconds=0.0, computed_tokens=(0,) * workers, busy_seconds=(0.0,) * workers
    )


def least_prefill_ms(tokens: int, times: StepTime) -> float:
    """Return the least time in which steps of at most `chunk_tokens` compute so many tokens, in milliseconds.

    A sum of a quadratic function over parts of a given sum is least for equal parts, if it bends upwards, and for
    parts as large as they can be, if it bends downwards.
    """
    full, rest = divmod(tokens, times.chunk_tokens)
    constant, linear, quadratic = times.prefill_ms
    if quadratic <= 0:
        return full * times.prefill(times.chunk_tokens) + (times.prefill(rest) if rest else 0.0)
    steps, least = max(full + (rest > 0), 1), inf
    while (even := steps * constant + linear * tokens + quadratic * tokens * tokens / steps) < least:
        least, steps = even, steps + 1
    return least
