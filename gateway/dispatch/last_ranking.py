"""The last ranking of a request that waits for a worker of its choice: most looks need no new one.

    a look --no worker will do by the last ranking--> the request waits on, without a new ranking
        '--one will do, or the ranking is old, or workers or windows have changed--> it is ranked again

While a fleet is full, most looks at a waiting request are in vain, and a new ranking each time costs several times
what the request does. So the costs of the last ranking are corrected by what is ahead of each worker by now, as the
queue of all gateways does it (acquisition/shared_turn_placements.py). Only a new ranking places a request.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter

import msgspec

from gateway.dispatch.placement import prefill_worker_of
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from policies.admission.dispatch_window import DispatchWindow
from policies.routing.protocol import Ranking, Route

KEPT_SECONDS = 0.025
"""How long a ranking is kept: others may compute the request's prefix, and the engines' memory fills up."""


class LastRanking(msgspec.Struct, frozen=True, kw_only=True):
    """The routes that a request was ranked with last, in vain, and what they were ranked by."""

    routes: Ranking
    """Those that it may wait for."""
    ahead: Sequence[int]
    """Tokens that were queued at the worker of each route."""
    workers: Sequence[Worker]
    window: DispatchWindow
    until: float
    """Seconds on the monotonic clock."""

    @classmethod
    def of(
        cls, routes: Ranking, fleet: Fleet, workers: Sequence[Worker], window: DispatchWindow, now: float
    ) -> "LastRanking":
        """Return the ranking as of now. `workers`: those that serve the model."""
        ahead = [fleet[prefill_worker_of(route)].load.all_tokens_queued for route in routes]
        return cls(routes=routes, ahead=ahead, workers=workers, window=window, until=now + KEPT_SECONDS)

    def holds(self, workers: Sequence[Worker], window: DispatchWindow, now: float) -> bool:
        """Return whether the same workers have the same windows, and the ranking is not old."""
        return now < self.until and workers is self.workers and window == self.window

    def routes_now(self, fleet: Fleet) -> Iterable[tuple[float, Route]]:
        """Return the routes with their costs by what is ahead of their workers now, the best first."""
        costs = [
            route.cost_ms
            + route.ms_per_queued_token * (fleet[prefill_worker_of(route)].load.all_tokens_queued - before)
            for route, before in zip(self.routes, self.ahead, strict=True)
        ]
        return sorted(zip(costs, self.routes, strict=True), key=itemgetter(0))
