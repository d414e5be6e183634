"""Predictions in the replica: the paths that requests under way bring to workers.

A prediction has the new blocks of its path and the key of the node above them; the rest of the path is looked up
when the prediction arrives. A prediction without a known node does not count, and is removed at its deadline.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from radix_cache.blocks import Hashes
from radix_cache.shared.log_records import PredictionAdded
from radix_cache.shared.node_table import NodeTable
from radix_cache.tree import RadixTree

LAPSED_MAX = 16384


@dataclass(frozen=True, slots=True)
class PredictedPath:
    """A prediction under way: the shard that has it, the tenure it is for, and until when it counts."""

    shard: int
    tenure: int
    until: float


class PredictionTable:
    """The predictions under way; `clock` is seconds, never backwards, and none counts longer than `seconds_max`."""

    def __init__(self, table: NodeTable, clock: Callable[[], float], seconds_max: float) -> None:
        self.lapsed: dict[bytes, int] = {}
        """Predictions that are over and that Redis still has: the shard by id. Index maintenance removes them."""
        self._table = table
        self._clock = clock
        self._seconds_max = seconds_max
        self._tree: RadixTree[tuple[int, bytes]] = RadixTree()
        self.predictions: OrderedDict[bytes, PredictedPath] = OrderedDict()
        """The predictions under way, the oldest first."""
        self._ids_by_shard: dict[int, set[bytes]] = {}

    def __len__(self) -> int:
        """Return the number of predictions under way."""
        return len(self.predictions)

    def under_way(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield the predictions under way as (shard, id, tenure)."""
        for identity, prediction in self.predictions.items():
            yield prediction.shard, identity, prediction.tenure

    def ids_of(self, shard: int) -> set[bytes]:
        """Return the ids of the predictions that Redis was last known to have in a shard."""
        lapsed = {identity for identity, its in self.lapsed.items() if its == shard}
        return lapsed.union(self._ids_by_shard.get(shard, ()))

    def add(self, shard: int, prediction: PredictionAdded, server_ahead: float) -> None:
        """Add a prediction; `server_ahead` is the server's time in seconds less that of the local clock."""
        self.remove(prediction.id)
        now = self._clock()
        seconds = min(prediction.deadline_ms / 1000 - server_ahead - now, self._seconds_max)
        if seconds <= 0:
            self._lapse(shard, prediction.id)
            return
        self.predictions[prediction.id] = PredictedPath(shard, prediction.tenure, now + seconds)
        self._ids_by_shard.setdefault(shard, set()).add(prediction.id)
        hashes = prediction.hashes
        if prediction.depth:
            above = self._table.path_to(prediction.above, prediction.depth)
            if above is None:
                return
            hashes = above + hashes
        self._tree.record(hashes, (prediction.tenure, prediction.id), now)

    def remove(self, identity: bytes) -> None:
        """Remove a prediction that Redis does not have any more."""
        self.lapsed.pop(identity, None)
        found = self.predictions.pop(identity, None)
        if found is not None:
            self._ids_by_shard[found.shard].discard(identity)
            self._tree.forget((found.tenure, identity))

    def expire(self) -> None:
        """Let predictions lapse after their deadline; index maintenance removes them from Redis."""
        now = self._clock()
        while self.predictions:
            identity, prediction = next(iter(self.predictions.items()))
            if prediction.until > now:
                return
            self.remove(identity)
            self._lapse(prediction.shard, identity)

    def _lapse(self, shard: int, identity: bytes) -> None:
        if len(self.lapsed) >= LAPSED_MAX:
            del self.lapsed[next(iter(self.lapsed))]
        self.lapsed[identity] = shard

    def match(self, hashes: Hashes) -> dict[int, int]:
        """Return how many leading blocks of the path are on their way to each tenure."""
        self.expire()
        depths: dict[int, int] = {}
        for (tenure, _), blocks in self._tree.match(hashes).items():
            if blocks > depths.get(tenure, 0):
                depths[tenure] = blocks
        return depths
