"""The way of KV events from simulated engines to the prefix index: at once, late, or lost."""

from array import array
from collections.abc import Callable, Sequence
from random import Random

from policies.simulation.known_blocks import KnownPrefixes
from policies.simulation.scenario import Scenario
from policies.simulation.timeline import Timeline


class IndexEvents:
    """Delivers the KV events of all engines to the index. `random` draws which are lost."""

    def __init__(self, known: KnownPrefixes, scenario: Scenario, events: Timeline, random: Random) -> None:
        self._known = known
        self._scenario = scenario
        self._events = events
        self._random = random
        self._epochs = [0] * scenario.workers
        """How often each worker has restarted."""

    def stored(self, worker: int, path: "array[int]", now: float) -> None:
        """Deliver that a worker has stored the blocks of a path."""
        self._deliver(worker, lambda then: self._known.stored(worker, path, then), now)

    def removed(self, worker: int, blocks: Sequence[int], now: float) -> None:
        """Deliver that a worker has evicted blocks."""
        self._deliver(worker, lambda then: self._known.removed(worker, blocks), now)

    def restarted(self, worker: int) -> None:
        """Drop what a worker held: it has restarted, and its events that are under way no longer count."""
        self._epochs[worker] += 1
        self._known.forget(worker)

    def _deliver(self, worker: int, happens: Callable[[float], None], now: float) -> None:
        scenario = self._scenario
        if scenario.event_loss and self._random.random() < scenario.event_loss:
            return
        if not scenario.event_seconds:
            happens(now)
            return
        epoch = self._epochs[worker]

        def arrives(then: float) -> None:
            if self._epochs[worker] == epoch:
                happens(then)

        self._events.at(now + scenario.event_seconds, arrives)
