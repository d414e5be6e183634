"""A consistent snapshot of a shard: the result of a scan, with the log entries since its start applied on top.

tip, sequence ---- scan, field by field ---- log since the sequence ----> load
             some nodes before a change, some after it      every change once more, on top
"""

from collections.abc import Iterable, Iterator

from radix_cache.blocks import Hashes
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import (
    Holders,
    LogEntry,
    NodeHead,
    PredictionAdded,
    PredictionRemoved,
    decode_prediction,
)
from radix_cache.shared.tree_dump import DumpedTree


class LogGap(Exception):
    """An entry does not follow the last one, so one was missed and the shard has to be read again."""


class ShardSnapshot:
    """A shard as of its last change, which has the id `tip` and the number `sequence`."""

    def __init__(self, tip: bytes, sequence: int, names: dict[TreeId, bytes]) -> None:
        self.tip = tip
        self.sequence = sequence
        self.trees = {namespace: DumpedTree(namespace, name) for namespace, name in names.items()}
        self._predictions: dict[bytes, PredictionAdded] = {}

    def set_predictions(self, predictions: Iterable[tuple[bytes, bytes]]) -> None:
        """Decode and keep the stored predictions, given as (id, value)."""
        for identity, value in predictions:
            self._predictions[identity] = decode_prediction(identity, value)

    def apply(self, entry: LogEntry) -> None:
        """Apply the next change; ignore a change that the snapshot already has. Raises LogGap for any other."""
        if entry.sequence <= self.sequence:
            return
        if entry.before != self.tip:
            raise LogGap
        tree = self.trees.setdefault(entry.tree, DumpedTree(entry.tree, None))
        for record in entry.records():
            if isinstance(record, PredictionAdded):
                self._predictions[record.id] = record
            elif isinstance(record, PredictionRemoved):
                self._predictions.pop(record.id, None)
        tree.apply(entry)
        self.tip, self.sequence = entry.tip, entry.sequence

    @property
    def names(self) -> dict[TreeId, bytes]:
        """The packed namespaces by id."""
        return {namespace: tree.name for namespace, tree in self.trees.items() if tree.name is not None}

    @property
    def predictions(self) -> list[PredictionAdded]:
        """All predictions."""
        return list(self._predictions.values())

    def nodes(self) -> Iterator[tuple[TreeId, NodeHead, Hashes, dict[int, Holders]]]:
        """Yield all readable nodes. Damaged nodes are left out; an audit finds and repairs them."""
        for namespace, tree in self.trees.items():
            for node in tree.nodes.values():
                head, run = node.head, node.run
                if head is not None and run and len(run) == head.length and run[-1] == head.last:
                    yield namespace, head, run, node.chunks
