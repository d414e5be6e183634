"""Predictions in a read copy: which requests are under way to bring which paths to whom.

A prediction names what is new of its path, and the node above it; the path is found when it comes. One whose node
is not known is not believed, and goes when its time is over.
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
class _Prediction:
    shard: int
    tenure: int
    until: float


class PredictionTable:
    """`clock`: seconds, never backwards. `seconds_max`: no prediction is believed for longer.

    `lapsed`: shard by id of those whose time is over and that Redis still has, for whoever tidies up.
    """

    def __init__(self, table: NodeTable, clock: Callable[[], float], seconds_max: float) -> None:
        self.lapsed: dict[bytes, int] = {}
        self._table = table
        self._clock = clock
        self._seconds_max = seconds_max
        self._tree: RadixTree[tuple[int, bytes]] = RadixTree()
        self._predictions: OrderedDict[bytes, _Prediction] = OrderedDict()
        self._of_shard: dict[int, set[bytes]] = {}

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._predictions)

    def all(self) -> Iterator[tuple[int, bytes, int]]:
        """Those under way, by (shard, id, tenure)."""
        for identity, prediction in self._predictions.items():
            yield prediction.shard, identity, prediction.tenure

    def of(self, shard: int) -> set[bytes]:
        """Ids of those that Redis was last known to have."""
        lapsed = {identity for identity, its in self.lapsed.items() if its == shard}
        return lapsed.union(self._of_shard.get(shard, ()))

    def add(self, shard: int, prediction: PredictionAdded, server_ahead: float) -> None:
        """`server_ahead`: server time in seconds less our clock."""
        self.over(prediction.id)
        now = self._clock()
        seconds = min(prediction.deadline_ms / 1000 - server_ahead - now, self._seconds_max)
        if seconds <= 0:
            self._lapse(shard, prediction.id)
            return
        self._predictions[prediction.id] = _Prediction(shard, prediction.tenure, now + seconds)
        self._of_shard.setdefault(shard, set()).add(prediction.id)
        hashes = prediction.hashes
        if prediction.depth:
            above = self._table.path_to(prediction.above, prediction.depth)
            if above is None:
                return
            hashes = above + hashes
        self._tree.record(hashes, (prediction.tenure, prediction.id), now)

    def over(self, identity: bytes) -> None:
        """Redis does not have it any more."""
        self.lapsed.pop(identity, None)
        found = self._predictions.pop(identity, None)
        if found is not None:
            self._of_shard[found.shard].discard(identity)
            self._tree.forget((found.tenure, identity))

    def expire(self) -> None:
        """Those whose time is over are believed no more, whoever takes them away in Redis."""
        now = self._clock()
        while self._predictions:
            identity, prediction = next(iter(self._predictions.items()))
            if prediction.until > now:
                return
            self.over(identity)
            self._lapse(prediction.shard, identity)

    def _lapse(self, shard: int, identity: bytes) -> None:
        if len(self.lapsed) >= LAPSED_MAX:
            del self.lapsed[next(iter(self.lapsed))]
        self.lapsed[identity] = shard

    def match(self, hashes: Hashes) -> dict[int, int]:
        """Leading blocks that are on their way, by tenure."""
        self.expire()
        depths: dict[int, int] = {}
        for (tenure, _), blocks in self._tree.match(hashes).items():
            if blocks > depths.get(tenure, 0):
                depths[tenure] = blocks
        return depths
