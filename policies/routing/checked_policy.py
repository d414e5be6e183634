"""Holds a policy of another package to its promise (protocol.py), request by request.

What breaks it is told by its name and its place in the policy's own code, before places and Redis reckon with it.
The policies of this house are held to theirs by tests/conformance, which costs no request anything.
"""

import traceback
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import cast

from policies.routing.protocol import Candidate, Ranking, Route, RouteQuery, RoutingPolicy


class PromiseBroken(Exception):
    """A policy failed, or what it returned is no ranking of its candidates. Says which policy, and why."""


def held(policy: RoutingPolicy) -> RoutingPolicy:
    """The same policy, which raises nothing but PromiseBroken."""
    return policy if isinstance(policy, Held) else cast(RoutingPolicy, Held(policy))


class Held:
    """A RoutingPolicy that raises nothing but PromiseBroken, and returns nothing but rankings."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy
        self.name = policy.name
        self.options_type = policy.options_type

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Raises PromiseBroken."""
        try:
            routes = tuple(self._policy.rank(query, candidates, now))
        except Exception as err:
            said = f"{type(err).__name__}: {err}"
            raise PromiseBroken(f"policy {self.name} failed: {said} ({_place(err)})") from err
        if problem := _problem(routes, [candidate.worker.id for candidate in candidates]):
            raise PromiseBroken(f"policy {self.name} returned no ranking: {problem}")
        return routes


def _problem(routes: Sequence[object], workers: Sequence[str]) -> str | None:
    """Why these are not routes to each of the workers once."""
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
    """Where it was raised: of the frames, the innermost."""
    frame = traceback.extract_tb(err.__traceback__)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"
