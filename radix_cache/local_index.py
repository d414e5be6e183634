"""A PrefixIndex in the memory of one process: one tree of confirmed paths and one of predicted paths.

The second tree counts requests, so that the end of one request removes only what no other request has.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from radix_cache.blocks import Hashes
from radix_cache.in_flight_tree import InFlightNode, InFlightTree, SharedPart
from radix_cache.index import IndexStats
from radix_cache.match import NO_MATCH, KnownMatch, PrefixMatch, WorkerId
from radix_cache.namespace import Namespace
from radix_cache.tiers import Tier
from radix_cache.tree import RadixTree

Prediction = tuple[WorkerId, str]
"""The worker and the writer of a prediction."""

WAITING = WorkerId("")
"""The worker in predictions of requests that still wait for one."""

IDLE_CHECKS_PER_LIFE = 64


class LocalIndex:
    """A PrefixIndex in memory. Namespaces share its trees, since their salted hashes have nothing in common.

    Args:
        clock: Seconds that never run backwards.
        blocks_max: The bound of confirmed blocks, and of predicted blocks.
        predicted_seconds: How long a prediction counts.
        idle_seconds_max: Paths that were not used for longer than this are dropped.
        predictions_max: The bound of simultaneous predictions; beyond it the oldest is dropped.
        node_blocks: The memory of a node itself, in blocks.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        blocks_max: int,
        predicted_seconds: float,
        idle_seconds_max: float,
        predictions_max: int = 65536,
        node_blocks: int = 0,
    ) -> None:
        self._clock = clock
        self._blocks_max = blocks_max
        self._node_blocks = node_blocks
        self._predicted_seconds = predicted_seconds
        self._idle_seconds_max = idle_seconds_max
        # A prediction adds at most two nodes: one for its own blocks, one where its path leaves another path.
        self._predictions_max = (
            max(1, min(predictions_max, blocks_max // (2 * node_blocks))) if node_blocks else predictions_max
        )
        self._confirmed: RadixTree[WorkerId] = RadixTree()
        self._in_flight: InFlightTree[WorkerId] = InFlightTree()
        self._last_nodes: dict[Prediction, InFlightNode[WorkerId] | None] = {}
        self._waiting: Counter[str] = Counter()  # requests that wait, by model
        self._models: dict[str, str] = {}  # of the requests that wait
        self._expiries: OrderedDict[Prediction, float] = OrderedDict()  # soonest first
        self._capacity: dict[WorkerId, int] = {}
        self._held_before: dict[Prediction, int] = {}
        self._instances: dict[WorkerId, str] = {}
        self._idle_check_at = clock()

    def match(self, namespace: Namespace, hashes: Hashes) -> PrefixMatch:
        """Return how many leading blocks of the path each worker holds, confirmed and pending."""
        if self._expiries:
            self._expire(self._clock())
        pending: dict[WorkerId, int] = {}
        shared: Sequence[SharedPart] = ()
        if self._expiries:
            pending = self._in_flight.match(hashes)
            pending.pop(WAITING, None)
            shared = self._in_flight.shared(hashes)
        if self._confirmed.blocks:
            return KnownMatch(
                confirmed=self._confirmed.match(hashes),
                pending=pending,
                slower=self._confirmed.slower(hashes),
                shared=shared,
            )
        return KnownMatch(pending=pending, shared=shared) if shared else NO_MATCH

    def repeated_blocks(self, workers: Iterable[WorkerId]) -> Mapping[WorkerId, int]:
        """Return how many blocks the requests under way on each of the workers repeat; see PrefixIndex."""
        repeated = self._in_flight.repeated
        return {worker: repeated[worker] for worker in workers if worker in repeated} if repeated else {}

    def record(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        writer: str,
        match: PrefixMatch | None = None,
    ) -> None:
        """Predict that the request `writer` brings this path to `worker`."""
        if (worker, writer) in self._expiries:
            self.withdraw(worker, writer)
        if not hashes:
            return
        now = self._clock()
        if self._expiries:
            self._expire(now)
        if len(self._expiries) >= self._predictions_max:
            self.withdraw(*next(iter(self._expiries)))
        self._expiries[worker, writer] = now + self._predicted_seconds
        self._last_nodes[worker, writer] = self._in_flight.add(hashes, worker)
        while self._in_flight.blocks > self._blocks_max:
            self.withdraw(*next(iter(self._expiries)))
        if self._confirmed.blocks:
            self._held_before[worker, writer] = self._confirmed.match(hashes).get(worker, 0)

    def withdraw(self, worker: WorkerId, writer: str) -> None:
        """Withdraw the writer's prediction."""
        self._held_before.pop((worker, writer), None)
        if (worker, writer) in self._expiries:
            self._end_prediction((worker, writer))

    def report(
        self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str, blocks: int
    ) -> None:
        """Drop the blocks that the worker has lost, if it reported fewer than were confirmed at `record`."""
        if blocks < self._held_before.get((worker, writer), 0):
            self._confirmed.shorten(hashes, worker, blocks)
            self._confirmed.record(hashes, worker, self._clock())

    def wait(self, namespace: Namespace, hashes: Hashes, writer: str) -> None:
        """Count the request `writer`, which waits for a worker."""
        if writer not in self._models:
            self._models[writer] = namespace.model
            self._waiting[namespace.model] += 1
            self.record(namespace, hashes, WAITING, writer)

    def leave(self, writer: str) -> None:
        """Stop counting the request `writer` among those that wait."""
        model = self._models.pop(writer, None)
        if model is not None:
            self._waiting[model] -= 1
            self.withdraw(WAITING, writer)

    def waiting(self, model: str) -> int:
        """Return how many requests for the model wait."""
        return self._waiting[model]

    def confirm(self, namespace: Namespace, hashes: Hashes, worker: WorkerId) -> None:
        """Record that `worker` holds this path now."""
        self.hold(namespace, hashes, worker)

    def hold(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        tier: Tier = Tier.GPU,
    ) -> None:
        """Record that `worker` holds this path in this tier or a faster one; keep the index within its bounds."""
        now = self._clock()
        self._confirmed.record(hashes, worker, now, tier)
        if worker in self._capacity:
            self._confirmed.evict(worker, self._capacity[worker])
        self._confirmed.shrink(self._blocks_max, self._node_blocks)
        if now >= self._idle_check_at:
            self._idle_check_at = now + self._idle_seconds_max / IDLE_CHECKS_PER_LIFE
            self._confirmed.evict_idle(now - self._idle_seconds_max)

    def shorten(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        blocks: int,
        tier: Tier = Tier.DISK,
    ) -> None:
        """Note that `worker` holds at most the first `blocks` of the path in this tier and faster ones."""
        self._confirmed.shorten(hashes, worker, blocks, tier)

    def set_capacity(self, worker: WorkerId, blocks_max: int) -> None:
        """Set the capacity of `worker` in blocks, and evict its blocks beyond that."""
        self._capacity[worker] = blocks_max
        self._confirmed.evict(worker, blocks_max)

    def enrol(self, worker: WorkerId, instance: str) -> None:
        """Note the worker's instance; a new instance holds nothing."""
        if self._instances.get(worker, instance) != instance:
            self.forget(worker)
        self._instances[worker] = instance

    def forget(self, worker: WorkerId) -> None:
        """Record that `worker` holds nothing, and drop its capacity and its instance."""
        self._confirmed.forget(worker)
        self._capacity.pop(worker, None)
        self._instances.pop(worker, None)
        for prediction in [p for p in self._expiries if p[0] == worker]:
            self.withdraw(*prediction)

    def stats(self) -> IndexStats:
        """Return the current size of the index."""
        return IndexStats(
            nodes=len(self._confirmed),
            blocks=self._confirmed.blocks,
            predictions=len(self._expiries),
        )

    def _end_prediction(self, prediction: Prediction) -> None:
        del self._expiries[prediction]
        self._in_flight.remove(self._last_nodes.pop(prediction), prediction[0])

    def _expire(self, now: float) -> None:
        while self._expiries and next(iter(self._expiries.values())) <= now:
            self.withdraw(*next(iter(self._expiries)))
