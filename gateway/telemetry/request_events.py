"""Events of a request before its answer: its wait, and failed attempts on workers."""

import msgspec

ROUTES_MAX = 8
"""The most routes of a ranking that a record keeps, the best first."""


class QueueWait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a request began to wait, and how many requests waited before it at its gateway."""

    reason: str
    requests_ahead: int
    tokens_ahead: int
    """Uncached prompt tokens of these requests."""
    tenants_ahead: tuple[tuple[str, int], ...]
    """Requests ahead by tenant, the most first; for operators only."""


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt on a worker that gave no answer."""

    worker: str
    why: str
    """`unhealthy`, `server_error`, `busy`, `refused` or `timed_out`; a worker's own text may quote the prompt."""
    began: float
    """Seconds after the request's arrival."""
    at: float
    """When it failed, in seconds after the request's arrival."""
