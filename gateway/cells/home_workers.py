"""The workers that are at home in this gateway's cell: routing prefers them among equally loaded ones.

The rule, and why there is one, is in policies/cell_ownership.py.
"""

from collections.abc import Callable, Iterable

from gateway.cells.living_cells import LivingCells
from gateway.fleet.worker import Worker
from policies.cell_ownership import away_tokens, home_of


class HomeWorkers:
    """Marks the workers of a fleet that are at home in other cells."""

    def __init__(self, living: LivingCells) -> None:
        self._living = living
        self._cells: frozenset[str] = frozenset()
        self._homes: dict[str, str | None] = {}

    def mark(self, workers: Iterable[Worker], window_of: Callable[[frozenset[str]], int]) -> None:
        """Follow the cells that are alive now; `window_of`: the window of workers with these models, in tokens."""
        cells, own = frozenset(self._living.cells), self._living.cell
        known = self._homes if cells == self._cells else {}
        self._cells, self._homes = cells, {}
        windows: dict[frozenset[str], int] = {}
        for worker in workers:
            if worker.provider is not None:
                continue
            home = known[worker.id] if worker.id in known else home_of(worker.id, cells)
            self._homes[worker.id] = home
            tokens = 0
            if home is not None and home != own:
                models = worker.models
                if models not in windows:
                    windows[models] = window_of(models)
                tokens = away_tokens(windows[models], len(cells - {own}), worker.away_tokens)
            if tokens != worker.away_tokens:
                worker.away_tokens = tokens
                for changed in worker.load.on_change:
                    changed()
