"""The loads of workers that the queue of several gateways counts: every place itself, as Redis does.

A gateway learns late what the others have sent; the queue decides whether a worker has room, and its costs
follow the tokens that are queued there when the turn is given (best_route of
gateway/queueing/shared/lua/best_route.lua).
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from policies.admission.passed_over import WorkerAhead
from policies.admission.window_room import fits_window
from policies.latency_model import tokens_counted
from policies.others_load import NO_TOTALS, LoadTotals
from policies.routing.protocol import Route
from radix_cache.match import WorkerId


class QueueView:
    """The tokens queued and the requests under way on each worker, of all gateways; workers by their place."""

    def __init__(self, workers: int) -> None:
        self._loads = [NO_TOTALS] * workers

    def add(self, worker: int, change: LoadTotals) -> None:
        """Count a dispatch, a first token or an end."""
        self._loads[worker] = self._loads[worker].plus(change)

    def of(self, worker: int) -> LoadTotals:
        """Return the load of a worker."""
        return self._loads[worker]

    def ranked_now(
        self, ranking: Sequence[Route], queued_then: Sequence[int], places: Mapping[WorkerId, int]
    ) -> list[Route]:
        """Return routes by their present cost; `queued_then`: the tokens queued that each was ranked with."""

        def now(route: Route, queued_then: int) -> Route:
            counted = tokens_counted(self.queued(places[route.worker]), queued_then, route.computed_tokens)
            more = route.ms_per_queued_token * (counted - queued_then)
            return replace(route, cost_ms=route.cost_ms + more)

        return sorted(map(now, ranking, queued_then), key=lambda route: route.cost_ms)

    def fits(self, worker: int, uncached_tokens: int, window_tokens: int, *, ahead: bool = False) -> bool:
        """Return whether a request fits into a worker's window; `ahead`: only if the worker is idle."""
        queued = self._loads[worker].tokens_queued
        return not queued if ahead else fits_window(queued, uncached_tokens, window_tokens)

    def queued(self, worker: int) -> int:
        """Return the uncached tokens sent to a worker that have not brought a first token."""
        return self._loads[worker].tokens_queued

    def ahead(self, worker: int) -> WorkerAhead:
        """Return the tokens and streams of a worker by which it has room for a request or not."""
        load = self._loads[worker]
        return load.tokens_queued, load.tokens_queued, load.streams

    def streams(self, worker: int) -> int:
        """Return how many requests a worker has."""
        return self._loads[worker].streams
