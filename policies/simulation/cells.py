"""Cells of gateways in a simulation: each publishes its loads and turns, and takes over those of the others late.

    every PERIOD_SECONDS, in each cell at its own moments, as in gateway/cells/cell_loads.py:

        publish what this cell has now --> count what the others have published last as load of the workers, at most
        their fair part of a window; keep the turns in step with theirs (policies/cell_turns.py)

A tenant belongs to a cell by the rule of the gateway (policies/cell_ownership.py). The gateways of a cell share one
view of the fleet and one queue, as through the Redis of their cell. The prefix index is one object for all cells: a
cell follows the caches of its own tenants and of all groups of tenants that share one, so that it has all prefixes
of its requests that the index of all cells would have.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from policies.cell_ownership import away_tokens, fair_part, home_of, owner_of
from policies.cell_turns import QueueProgress
from policies.others_load import NO_TOTALS, LoadTotals
from policies.simulation.gateway_view import GatewayView
from radix_cache.match import WorkerId

PERIOD_SECONDS = 0.1
"""PERIOD_SECONDS of gateway/cells/cell_loads.py."""


class TenantCells:
    """The places of the cells that tenants belong to; a tenant is its own organisation."""

    def __init__(self, cells: int) -> None:
        self._names = [f"cell-{at}" for at in range(cells)]
        self.of = lru_cache(maxsize=None)(self._of)

    def _of(self, tenant: str) -> int:
        owner = owner_of(tenant, self._names)
        return 0 if owner is None else self._names.index(owner)

    def homes(self, cell: int, workers: Sequence[WorkerId]) -> list[bool]:
        """Return which of these workers are at home in a cell."""
        return [home_of(worker, self._names) == self._names[cell] for worker in workers]


class CellExchange:
    """The loads that the cells of one simulation have published, by cell and worker.

    `homes`: by cell, which of the workers are at home there.
    """

    def __init__(self, views: Sequence[GatewayView], homes: Sequence[Sequence[bool]]) -> None:
        workers = len(homes[0])
        self._views = views
        self._homes = homes
        self._away_tokens = [0] * len(views)
        self._published = [[NO_TOTALS] * workers for _ in views]
        self._changed: list[set[int]] = [set() for _ in views]
        """By cell: workers of which other cells have published a change since its last exchange."""
        self._progress: list[Sequence[QueueProgress] | None] = [None] * len(views)
        self._windows = [0] * len(views)
        self._tokens, self._streams, self._kv_tokens, self._cells = ([0] * workers for _ in range(4))
        """By worker: sums of what was published, and how many cells have requests there."""

    def exchange(self, cell: int, window_tokens: int, now: float) -> None:
        """Publish what a cell has now, and let its view count what the others have published.

        `window_tokens`: of a worker, by the cell.
        """
        view, own = self._views[cell], self._published[cell]
        self._publish(cell, {worker: view.own_load(worker) for worker in view.take_changed()})
        if window_tokens != self._windows[cell]:
            self.take_window(cell, window_tokens)
            self._changed[cell] = set(range(len(own)))
        for worker in sorted(self._changed[cell]):
            view.take_load_of_cells(worker, self._others(worker, own[worker], window_tokens), now)
        self._changed[cell].clear()

    def progress(self, cell: int, own: Sequence[QueueProgress]) -> list[Sequence[QueueProgress]]:
        """Publish a cell's progress, and return what the others have published."""
        self._progress[cell] = own
        return [each for at, each in enumerate(self._progress) if at != cell and each is not None]

    def take_window(self, cell: int, window_tokens: int) -> None:
        """Take over a worker's window: by it the cell prefers the workers that are at home there."""
        self._windows[cell] = window_tokens
        tokens = self._away_tokens[cell] = away_tokens(
            window_tokens, len(self._views) - 1, self._away_tokens[cell]
        )
        self._views[cell].set_homes(self._homes[cell], tokens)

    def _others(self, worker: int, own: LoadTotals, window_tokens: int) -> LoadTotals:
        """Return the load of the other cells on a worker, as published: of a window at most their fair part."""
        others = self._cells[worker] - (own.streams > 0)
        if not others:
            return NO_TOTALS
        queued, part = self._tokens[worker] - own.tokens_queued, fair_part(window_tokens, others)
        return LoadTotals(
            queued if queued < part else part,
            self._streams[worker] - own.streams,
            self._kv_tokens[worker] - own.kv_tokens,
        )

    def _publish(self, cell: int, changed: Mapping[int, LoadTotals]) -> None:
        own = self._published[cell]
        for worker, load in changed.items():
            before, own[worker] = own[worker], load
            self._tokens[worker] += load.tokens_queued - before.tokens_queued
            self._streams[worker] += load.streams - before.streams
            self._kv_tokens[worker] += load.kv_tokens - before.kv_tokens
            self._cells[worker] += (load.streams > 0) - (before.streams > 0)
        for at, unread in enumerate(self._changed):
            if at != cell:
                unread.update(changed)
