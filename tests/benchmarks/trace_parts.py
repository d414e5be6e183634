"""A recorded trace as many tenants at once: parts from evenly spaced moments of it, each for its own tenant."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from policies.simulation.trace import TraceRequest, isolated, paced, read_trace


def trace_of_parts(path: Path, parts: int, seconds: float, seed: int) -> list[TraceRequest]:
    """Return so many parts of a trace, each of so many seconds, as if they were recorded at the same time.

    Coarse timestamps are spread at random first. No two parts share a prefix. Raises TraceInvalid.
    """
    whole = paced(read_trace(path), seed=seed)
    last = max(whole[-1].at - seconds, 0.0)
    requests = [
        request
        for number in range(parts)
        for request in _part(whole, last * number / max(1, parts - 1), seconds, f"part-{number:03}")
    ]
    return isolated(sorted(requests, key=lambda request: request.at))


def _part(whole: list[TraceRequest], begins: float, seconds: float, tenant: str) -> Iterator[TraceRequest]:
    for request in whole:
        if begins <= request.at < begins + seconds:
            yield msgspec.structs.replace(request, at=request.at - begins, tenant=tenant)
