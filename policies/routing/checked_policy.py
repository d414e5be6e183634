"""A guard around a routing policy of another package: every ranking is checked before the gateway uses it.

A policy that breaks its contract (protocol.py) is named in the error, with the line of its own code, before
placements and Redis rely on its result. The built-in policies are checked by tests/conformance instead, which costs
no request anything.
"""

import traceback
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import cast

from policies.routing.protocol import Candidate, Ranking, Route, RouteQuery, RoutingPolicy


class PolicyContractBroken(Exception):
    """A routing policy raised an error or returned no ranking of its candidates; the text has the cause."""


def checked(policy: RoutingPolicy) -> RoutingPolicy:
    """Return the policy wrapped so that it raises nothing but PolicyContractBroken."""
    return policy if isinstance(policy, CheckedPolicy) else cast(RoutingPolicy, CheckedPolicy(policy))


class CheckedPolicy:
    """A RoutingPolicy that raises nothing but PolicyContractBroken, and returns nothing but rankings."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy
        self.name = policy.name
        self.options_type = policy.options_type
        self.shortlist: bool = getattr(policy, "shortlist", False)

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Return the inner policy's ranking. Raises PolicyContractBroken."""
        try:
            routes = tuple(self._policy.rank(query, candidates, now))
        except Exception as err:
            cause = f"{type(err).__name__}: {err}"
            raise PolicyContractBroken(f"policy {self.name} failed: {cause} ({_place(err)})") from err
        if problem := _problem(routes, [candidate.worker.id for candidate in candidates]):
            raise PolicyContractBroken(f"policy {self.name} returned no ranking: {problem}")
        return routes


def _problem(routes: Sequence[object], workers: Sequence[str]) -> str | None:
    """Return why these are not routes that name each worker exactly once; None if they are."""
    left = set(workers)
    for route in routes:
        if not isinstance(route, Route):
            return f"{type(route).__name__} in place of a Route"
        if route.worker not in left:
            return f"worker {route.worker} is no candidate, or is there twice"
        left.remove(route.worker)
        if not (isfinite(route.cost_ms) and isfinite(route.ms_per_queued_token)):
            return f"the cost of worker {route.worker} is not finite"
    return f"{', '.join(sorted(left)[:3])} left out" if left else None


def _place(err: Exception) -> str:
    """Return file and line of the innermost frame of an error."""
    frame = traceback.extract_tb(err.__traceback__)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"
