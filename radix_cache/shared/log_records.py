"""The binary format of a shard's changes: entries of its log, and messages of its channel.

    entry     tip 8 bytes | tip of the change before | sequence u64 | namespace id 8 bytes | records
    records   n  key, u16 bytes, head and holders, u16 blocks of the run that stay, u16, those behind them    a node
              h  key, u16 chunk, u16 bytes, holders                                             its further holders
              x  key                                                                            a node is gone
              p  id 16 bytes, u32 bytes, tenure u32, deadline in server ms u64,                 a prediction
                 key of a node above, its depth u32, hashes
              w  id 16 bytes                                                                    a prediction is over
              m  u16 bytes, name                                                                a namespace is new
              c                                                                                 it was cleared
              e                                                                                 it has no node left
    registry  t  u16 bytes, worker id, tenure u32, its instance          in place of namespace and records

Records are absolute values, except for runs; there the last block shows whether the run is the expected one, since
hashes are chained. So applying an entry twice, or after a snapshot that already contains it, changes nothing.

Any change of this format, or of lua/tree.lua, needs a new LAYOUT in keys.py. Gateways of two versions then have
separate indexes, and neither misreads the other's.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct, iter_unpack

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from radix_cache.shared.keys import TreeId

NONE = bytes(8)
HEAD = Struct("<QIIIIBQQQ")
ENTRY = Struct("<8s8sQ")
_SIZES = Struct("<HH")
_U16 = Struct("<H")
_U32 = Struct("<I")
PREDICTION = Struct("<IQQI")

Holders = dict[int, int]
"""The leading blocks of one node that each tenure holds, packed by tier: see radix_cache/tiers.py."""


@dataclass(frozen=True, slots=True)
class NodeHead:
    """A node without its run and its further holders. See lua/tree.lua."""

    key: int
    sequence: int
    depth: int
    length: int
    children: int
    used: int
    level: int
    last: int
    next: int
    above: int
    holders: Holders


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node was added or changed; its run keeps its first `kept` blocks, followed by `more`."""

    head: NodeHead
    kept: int
    more: Hashes

    def run(self, before: Hashes) -> Hashes | None:
        """Return the changed run, given the former run; None if the change does not fit it."""
        if len(before) < self.kept or self.kept + len(self.more) != self.head.length:
            return None
        run = before if self.kept == len(before) and not self.more else before[: self.kept] + self.more
        return run if run[-1] == self.head.last else None


@dataclass(frozen=True, slots=True)
class HoldersChanged:
    """A chunk of a node's further holders was replaced."""

    key: int
    chunk: int
    holders: Holders


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node was removed."""

    key: int


@dataclass(frozen=True, slots=True)
class PredictionAdded:
    """A request is bringing a path to a tenure."""

    id: bytes
    tenure: int
    deadline_ms: int
    """The time until which it counts, in milliseconds of the server's clock."""
    above: int
    """The key of the node below which `hashes` continue the path; 0 for none."""
    depth: int
    """The number of blocks before the first of `hashes`."""
    hashes: Hashes


@dataclass(frozen=True, slots=True)
class PredictionRemoved:
    """A prediction was withdrawn or fulfilled."""

    id: bytes


@dataclass(frozen=True, slots=True)
class NamespaceAdded:
    """A namespace has its first node; `name` is the packed namespace."""

    name: bytes


@dataclass(frozen=True, slots=True)
class NamespaceCleared:
    """All nodes of the namespace were removed."""


@dataclass(frozen=True, slots=True)
class NamespaceRemoved:
    """The last node of the namespace was removed, and its name with it."""


LogRecord = (
    NodeChanged
    | HoldersChanged
    | NodeRemoved
    | PredictionAdded
    | PredictionRemoved
    | NamespaceAdded
    | NamespaceCleared
    | NamespaceRemoved
)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One change of a shard."""

    tip: bytes
    """The id of this change."""
    before: bytes
    """The id of the change that it follows."""
    sequence: int
    """The number of this change in its shard."""
    body: bytes

    @classmethod
    def decode(cls, data: bytes) -> "LogEntry":
        """Decode the head of an entry; the records are decoded by `records`."""
        tip, before, sequence = ENTRY.unpack_from(data)
        return cls(tip, before, sequence, data[ENTRY.size :])

    @property
    def tree(self) -> TreeId:
        """The tree that was changed."""
        return TreeId(self.body[:8])

    def tenure(self) -> tuple[WorkerId, int, str]:
        """Decode an entry of the registry: a worker, its tenure from now on, and the instance that has it."""
        size = _U16.unpack_from(self.body, 1)[0]
        return WorkerId(self.body[3 : 3 + size].decode()), *decode_tenure(self.body[3 + size :])

    def records(self) -> Iterator[LogRecord]:
        """Decode the records of an entry of a shard, in order. Raises ValueError for an unknown record."""
        data, at = self.body, 8
        while at < len(data):
            kind, at = data[at], at + 1
            if kind == 110:  # n
                key = int.from_bytes(data[at : at + 8], "little")
                size = _U16.unpack_from(data, at + 8)[0]
                at += 10
                head = decode_head(key, data[at : at + size])
                at += size
                kept, blocks = _SIZES.unpack_from(data, at)
                at += 4
                yield NodeChanged(head, kept, array("Q", data[at : at + 8 * blocks]))
                at += 8 * blocks
            elif kind == 104:  # h
                key = int.from_bytes(data[at : at + 8], "little")
                chunk, size = _SIZES.unpack_from(data, at + 8)
                at += 12
                yield HoldersChanged(key, chunk, decode_holders(data[at : at + size]))
                at += size
            elif kind == 120:  # x
                yield NodeRemoved(int.from_bytes(data[at : at + 8], "little"))
                at += 8
            elif kind == 112:  # p
                size = _U32.unpack_from(data, at + 16)[0]
                yield decode_prediction(data[at : at + 16], data[at + 20 : at + 20 + size])
                at += 20 + size
            elif kind == 119:  # w
                yield PredictionRemoved(data[at : at + 16])
                at += 16
            elif kind == 109:  # m
                size = _U16.unpack_from(data, at)[0]
                yield NamespaceAdded(data[at + 2 : at + 2 + size])
                at += 2 + size
            elif kind == 99:  # c
                yield NamespaceCleared()
            elif kind == 101:  # e
                yield NamespaceRemoved()
            else:
                raise ValueError(f"unknown record {chr(kind)!r}: another version writes this index")


def decode_head(key: int, data: bytes) -> NodeHead:
    """Decode the head of a node."""
    sequence, depth, length, children, used, level, last, next_, above = HEAD.unpack_from(data)
    holders = decode_holders(data[HEAD.size :])
    return NodeHead(key, sequence, depth, length, children, used, level, last, next_, above, holders)


def decode_holders(data: bytes) -> Holders:
    """Decode a chunk of holders."""
    return dict(iter_unpack("<II", data))


def decode_prediction(identity: bytes, data: bytes) -> PredictionAdded:
    """Decode a prediction."""
    tenure, deadline_ms, above, depth = PREDICTION.unpack_from(data)
    hashes: Hashes = array("Q", data[PREDICTION.size :])
    return PredictionAdded(identity, tenure, deadline_ms, above, depth, hashes)


def decode_tenure(data: bytes) -> tuple[int, str]:
    """Decode a worker's tenure, and the instance that has it (empty: unknown)."""
    return _U32.unpack_from(data)[0], data[4:].decode()
