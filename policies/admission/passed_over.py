"""When a request that waits for its own worker is tried again, in the queue of all gateways.

    look at a request --no worker will do--> passed over: the loads are kept -----a worker changed--> look again
                                                  |       ^
                                                  +-------+ nothing changed: it is passed over without a look

A request waits for the workers that are close enough to the best one (`waits_for`). No change helps it unless

    tokens ahead of one that it waits for are more or less      it has room, or costs more than another one by now
    tokens ahead of another one of its workers are less         it may be close enough now, or open
    an engine has a slot for it, or has none any more           it has room, or need not wait for that worker
    a worker with room was closed to it, and no longer is       the request before it has gone

or its own routes, its window or its turn change. So no look is made that is certain to be in vain, and none is
late. A search ends when PASSED_OVER_MAX looks were in vain, or when as many requests were passed over as may be in
all (passed_over_max of search_bounds.py): the next search continues behind them.
gateway/queueing/shared/lua/passed_over_requests.lua follows this rule, since a look costs Redis three commands; a
gateway alone tries requests by their last ranking (gateway/dispatch/last_ranking.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from radix_cache.match import WorkerId

WorkerAhead = tuple[int, int, int]
"""Tokens ahead of a worker, those of them that are not of other cells, and its streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VainLook:
    """The loads of a request's workers at a look that found no room for it."""

    ahead: Mapping[WorkerId, WorkerAhead]
    """Of each of its workers."""
    waits_for: frozenset[WorkerId]
    """The workers that are close enough to the best one."""
    closed: frozenset[WorkerId]
    """Of these the ones that had room, but were closed to it."""
    crowds: bool
    """Whether its tenant had more requests waiting, while tenants contend."""
    slots: Mapping[WorkerId, float] = field(default_factory=dict)
    """How many slots of a worker it may take (DispatchWindow.slots_allowed); any number of one that is missing."""

    def holds(self, ahead: Callable[[WorkerId], WorkerAhead], closed: ClosedWorkers, *, crowds: bool) -> bool:
        """Return whether another look would be in vain, too. `ahead`: of a worker now."""
        if crowds != self.crowds or any(closed.allows(worker, crowds=crowds) for worker in self.closed):
            return False
        for worker, before in self.ahead.items():
            now, slots = ahead(worker), self.slots.get(worker, inf)
            if now != before and (
                now[0] < before[0]
                or (now[0] != before[0] and worker in self.waits_for)
                or now[1] < before[1]
                or (now[2] < slots) is not (before[2] < slots)
            ):
                return False
        return True


def is_no_wider(window: DispatchWindow, before: DispatchWindow) -> bool:
    """Return whether a request that had no room in the window `before` has none in this one, workers apart."""
    return window == before or (
        window.narrow <= before.narrow
        and window.wide <= before.wide
        and (before.open is None) == (window.open is None)
        and (window.open or 0) <= (before.open or 0)
        and (window.contended, window.counts_own) == (before.contended, before.counts_own)
        and window.filled == before.filled
    )
