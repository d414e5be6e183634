"""A shard as a scan met it, and what its log says happened meanwhile: together the shard at one moment.

tip, sequence ---- scan, field by field ---- log since the sequence ----> load
             some nodes before a change, some after it      every change once more, on top
"""

from collections.abc import Iterable, Iterator

from radix_cache.blocks import Hashes
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.log_records import (LogEntry, NodeHead, Holders, PredictionAdded, PredictionRemoved, decode_prediction)
from radix_cache.shared.tree_dump import DumpedTree


class LogGap(Exception):
    """An entry does not follow the one before: something was missed, and the shard has to be read anew."""


class ShardSnapshot:
    """`tip`, `sequence`: of the last change that it has."""

    def __init__(self, tip: bytes, sequence: int, names: dict[NamespaceId, bytes]) -> None:
        self.tip = tip
        self.sequence = sequence
        self.trees = {namespace: DumpedTree(namespace, name) for namespace, name in names.items()}
        self._predictions: dict[bytes, PredictionAdded] = {}

    def foretold(self, predictions: Iterable[tuple[bytes, bytes]]) -> None:
        """Predictions as they are stored, by id."""
        for identity, value in predictions:
            self._predictions[identity] = decode_prediction(identity, value)

    def apply(self, entry: LogEntry) -> None:
        """The next change; one that is known already does nothing. Raises Gap if it is another one."""
        if entry.sequence <= self.sequence:
            return
        if entry.before != self.tip:
            raise LogGap
        tree = self.trees.setdefault(entry.namespace, DumpedTree(entry.namespace, None))
        for record in entry.records():
            if isinstance(record, PredictionAdded):
                self._predictions[record.id] = record
            elif isinstance(record, PredictionRemoved):
                self._predictions.pop(record.id, None)
        tree.apply(entry)
        self.tip, self.sequence = entry.tip, entry.sequence

    @property
    def names(self) -> dict[NamespaceId, bytes]:
        return {space: tree.name for space, tree in self.trees.items() if tree.name is not None}

    @property
    def predictions(self) -> list[PredictionAdded]:
        return list(self._predictions.values())

    def nodes(self) -> Iterator[tuple[NamespaceId, NodeHead, Hashes, dict[int, Holders]]]:
        """All that can be read. What is damaged is no reason to know nothing else; an audit finds and mends it."""
        for namespace, tree in self.trees.items():
            for node in tree.nodes.values():
                head, run = node.head, node.run
                if head is not None and run and len(run) == head.length and run[-1] == head.last:
                    yield namespace, head, run, node.chunks
