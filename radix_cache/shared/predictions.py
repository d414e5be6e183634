"""Predictions in the replica: the paths that all gateways' requests under way bring to workers, or use there.

A prediction contains the new blocks of its path and the key of the node above them; the rest of the path is looked
up when the prediction arrives. A prediction with an unknown node does not count, and is removed at its deadline.

Once the tree shows that the tenure holds the last of the new blocks, the request's prompt is computed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from radix_cache.blocks import Hashes
from radix_cache.in_flight_tree import InFlightNode, InFlightTree
from radix_cache.shared.log_records import PredictionAdded
from radix_cache.shared.node_table import NodeTable

LAPSED_MAX = 16384


class PredictionListener(Protocol):
    """A listener that is notified of the predictions of other gateways."""

    def predicted(self, identity: bytes, tenure: int, new_blocks: int, blocks: int, sent_at: float) -> None:
        """Handle a prediction: a request was sent to a tenure at `sent_at`, in seconds of the local clock.

        Its prompt has `blocks` full blocks; `new_blocks` of them are neither cached there nor on their way there.
        """
        ...

    def prompt_computed(self, identity: bytes) -> None:
        """Handle that the tenure of a prediction holds the last block of its prompt by now."""
        ...

    def prediction_over(self, identity: bytes) -> None:
        """Handle the end of a prediction, because its request has ended or goes to another worker."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PredictedPath:
    """A prediction under way: its shard, its tenure, and the time until which it counts."""

    shard: int
    tenure: int
    until: float
    last: InFlightNode[int] | None
    """The last node of its path; None if the path above is unknown, so that the prediction does not count."""
    new_block: int | None
    """The last block of its path, if the tenure did not hold that and a listener waits for it; else None."""


class PredictionTable:
    """The predictions under way, none of which counts for longer than `seconds_max`.

    `clock` returns seconds that never run backwards. `tree` stores the paths.
    """

    def __init__(
        self,
        table: NodeTable,
        clock: Callable[[], float],
        seconds_max: float,
        tree: InFlightTree[int] | None = None,
    ) -> None:
        self.listener: PredictionListener | None = None
        self.own = b""
        """The prefix of this process's own prediction ids, of which the listener is not notified."""
        self.lapsed: dict[bytes, int] = {}
        """The shards of ended predictions that Redis still has, by id. Index maintenance removes them there."""
        self._table = table
        self._clock = clock
        self._seconds_max = seconds_max
        self.tree: InFlightTree[int] = InFlightTree() if tree is None else tree
        """The paths of the requests under way, each at the tenure of its worker."""
        self.predictions: OrderedDict[bytes, PredictedPath] = OrderedDict()
        """The predictions under way, the oldest first."""
        self._ids_by_shard: dict[int, set[bytes]] = {}
        self.awaited: dict[int, list[bytes]] = {}
        """The predictions of other processes whose prompts are not computed yet, by their last blocks."""

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
        """Add a prediction; `server_ahead` is the server's clock minus the local clock, in seconds."""
        is_new = prediction.id not in self.predictions
        if not is_new or prediction.id in self.lapsed:
            self._drop(prediction.id)
        now = self._clock()
        seconds = min(prediction.deadline_ms / 1000 - server_ahead - now, self._seconds_max)
        if seconds <= 0:
            self._lapse(shard, prediction.id)
            return
        hashes: Hashes | None = prediction.hashes
        if prediction.depth:
            above = self._table.path_to(prediction.above, prediction.depth)
            hashes = above + prediction.hashes if above is not None else None
        new_block = None
        if is_new and self.listener is not None and not prediction.id.startswith(self.own):
            blocks = prediction.depth + len(prediction.hashes)
            held = max(prediction.depth, self.tree.depth(hashes, prediction.tenure) if hashes else 0)
            # A prediction lasts `_seconds_max` from the moment its request was sent; `seconds` of them are left.
            sent_at = now + seconds - self._seconds_max
            self.listener.predicted(prediction.id, prediction.tenure, blocks - held, blocks, sent_at)
            if held < blocks:
                new_block = prediction.hashes[-1]
                self.awaited.setdefault(new_block, []).append(prediction.id)
        last = self.tree.add(hashes, prediction.tenure) if hashes else None
        self.predictions[prediction.id] = PredictedPath(
            shard, prediction.tenure, now + seconds, last, new_block
        )
        self._ids_by_shard.setdefault(shard, set()).add(prediction.id)

    def holds(self, tenure: int, block: int) -> None:
        """Note that a tenure holds a block of `awaited`: the prompts that end there are computed."""
        for identity in list(self.awaited[block]):
            if self.predictions[identity].tenure == tenure:
                self._stop_awaiting(block, identity)
                if self.listener is not None:
                    self.listener.prompt_computed(identity)

    def remove(self, identity: bytes) -> None:
        """Remove a prediction that Redis no longer has."""
        if self.listener is not None and identity in self.predictions:
            self.listener.prediction_over(identity)
        self._drop(identity)

    def _drop(self, identity: bytes) -> None:
        self.lapsed.pop(identity, None)
        found = self.predictions.pop(identity, None)
        if found is not None:
            self._ids_by_shard[found.shard].discard(identity)
            self.tree.remove(found.last, found.tenure)
            if found.new_block is not None:
                self._stop_awaiting(found.new_block, identity)

    def _stop_awaiting(self, block: int, identity: bytes) -> None:
        """Await a prompt no more. Twice has no effect."""
        awaited = self.awaited.get(block, [])
        if identity in awaited:
            awaited.remove(identity)
            if not awaited:
                del self.awaited[block]

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
