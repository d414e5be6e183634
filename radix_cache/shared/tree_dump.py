"""Dumps one tree from Redis, field by field and as of one moment, for audit and repair.

A scan takes time, and reads some nodes before a change and others after it. The log contains all that every change
wrote; applying the entries since the scan began gives the tree as of the last change.
"""

import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import hiredis

from radix_cache.blocks import Hashes
from radix_cache.redis.call import RedisDown
from radix_cache.redis.connection import RedisConnection
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, Keys, TreeId
from radix_cache.shared.log_records import (
    Holders,
    HoldersChanged,
    LogEntry,
    NamespaceAdded,
    NamespaceCleared,
    NamespaceRemoved,
    NodeChanged,
    NodeHead,
    NodeRemoved,
    PredictionAdded,
    decode_head,
    decode_holders,
    decode_tenure,
)

SCAN_COUNT = 512
ATTEMPTS_MAX = 5
NONE = bytes(8)
_NO_RUN: Hashes = array("Q")

Pairs = dict[bytes, bytes]


@dataclass(slots=True)
class DumpedNode:
    """The fields of one node; None for a missing field. `chunks` are its further holders."""

    head: NodeHead | None = None
    run: Hashes | None = None
    chunks: dict[int, Holders] = field(default_factory=dict)


@dataclass(slots=True)
class DumpedTree:
    """The dump of one tree."""

    id: TreeId
    name: bytes | None
    """The packed namespace; None if it has no name in Redis."""
    nodes: dict[int, DumpedNode] = field(default_factory=dict)
    """The nodes by key."""
    unreadable: dict[bytes, str] = field(default_factory=dict)
    """Unreadable fields, each with the reason."""

    def put(self, name: bytes, value: bytes) -> None:
        """Add one field, as a scan returns it."""
        key = int.from_bytes(name[1:9], "little")
        try:
            if name[:1] == b"N" and len(name) == 9:
                self._node(key).head = decode_head(key, value)
            elif name[:1] == b"R" and len(name) == 9:
                self._node(key).run = array("Q", value)
            elif name[:1] == b"H" and len(name) == 11:
                chunk = int.from_bytes(name[9:11], "little")
                self._node(key).chunks[chunk] = decode_holders(value)
            else:
                self.unreadable[name] = "a field of an unknown kind"
        except (struct.error, ValueError) as err:
            self.unreadable[name] = f"it cannot be decoded: {err}"

    def apply(self, entry: LogEntry) -> None:
        """Apply one change of the log, if it is of this tree."""
        if entry.tree != self.id:
            return
        for record in entry.records():
            if isinstance(record, NodeChanged):
                node = self._node(record.head.key)
                node.head = record.head
                # A run that was scanned after this change already contains it.
                node.run = record.run(node.run or _NO_RUN) or node.run
            elif isinstance(record, HoldersChanged):
                self._node(record.key).chunks[record.chunk] = record.holders
            elif isinstance(record, NodeRemoved):
                self.nodes.pop(record.key, None)
            elif isinstance(record, NamespaceAdded):
                self.name = record.name
            elif isinstance(record, NamespaceCleared):
                self.name = None
                self.nodes.clear()
                self.unreadable.clear()
            elif isinstance(record, NamespaceRemoved):
                self.name = None

    def _node(self, key: int) -> DumpedNode:
        return self.nodes.setdefault(key, DumpedNode())


@dataclass(frozen=True, slots=True, kw_only=True)
class TenureNumbers:
    """The tenures of all workers."""

    current: dict[str, int]
    """The current tenure of each worker."""
    last: int
    """The highest tenure that was ever given; higher numbers are invalid."""


class TreeDumper:
    """Reads the index of one key prefix from Redis without changing it. All methods raise RedisDown."""

    def __init__(self, redis: ScriptCaller, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def tenures(self) -> TenureNumbers:
        """Return the tenures of all workers."""
        tenures = parse_pairs(await self._redis.ask("HGETALL", self._keys.workers))
        last = await self._redis.ask("HGET", self._keys.meta(REGISTRY), "tenures")
        if last is None:
            # After a loss of the registry the numbers continue from the clock: see lua/tenure.lua.
            last, _ = await self._redis.ask("TIME")
        return TenureNumbers(
            current={name.decode(): decode_tenure(value)[0] for name, value in tenures.items()},
            last=int(last),
        )

    async def names(self) -> dict[TreeId, bytes]:
        """Return the packed namespace of each tree."""
        found: dict[TreeId, bytes] = {}
        for shard in range(self._keys.shards):
            named = parse_pairs(await self._redis.ask("HGETALL", self._keys.names(shard)))
            found.update((TreeId(identity), name) for identity, name in named.items())
        return found

    async def trees(self) -> set[TreeId]:
        """Return the id of every tree, with or without a named namespace, by scanning all keys of every server."""
        found: set[TreeId] = set()
        async with self._redis.connect_all() as connections:
            for connection in connections:
                found |= await self._trees_at(connection)
        return found

    async def _trees_at(self, connection: RedisConnection) -> set[TreeId]:
        found: set[TreeId] = set()
        cursor = b"0"
        while True:
            reply = await connection.execute(
                ["SCAN", cursor, "MATCH", self._keys.any_tree, "COUNT", SCAN_COUNT]
            )
            if isinstance(reply, hiredis.ReplyError):
                raise RedisDown(str(reply))
            cursor, page = reply
            for key in page:
                try:
                    tree = TreeId(bytes.fromhex(key.decode().rpartition(":")[2]))
                except ValueError:
                    continue
                if len(tree) == 8 and self._keys.tree(tree) == key.decode():
                    found.add(tree)
            if cursor == b"0":
                return found

    async def tree(self, tree_id: TreeId) -> DumpedTree:
        """Return the dump of one tree, as of one moment."""
        for _ in range(ATTEMPTS_MAX):
            tree = await self._dump(tree_id)
            if tree is not None:
                return tree
        raise RedisDown(f"tree {tree_id.hex()} changes faster than it can be read")

    async def _dump(self, tree_id: TreeId) -> DumpedTree | None:
        """Dump a tree once; None if the log does not reach back to the beginning of the scan."""
        keys, shard = self._keys, self._keys.shard(tree_id)
        first_tip, sequence = await self._redis.ask("HMGET", keys.meta(shard), "tip", "sequence")
        tree = DumpedTree(tree_id, await self._redis.ask("HGET", keys.names(shard), tree_id))
        fields: Pairs = {}
        cursor = b"0"
        while True:
            cursor, page = await self._redis.ask("HSCAN", keys.tree(tree_id), cursor, "COUNT", SCAN_COUNT)
            fields.update(parse_pairs(page))
            if cursor == b"0":
                break
        for name, value in fields.items():
            tree.put(name, value)
        log = await self._redis.ask("XRANGE", keys.log(shard), f"({int(sequence or 0)}-1", "+")
        tip = first_tip or NONE
        for entry in (LogEntry.decode(data) for _, (_, data) in log):
            if entry.before != tip:
                return None
            tree.apply(entry)
            tip = entry.tip
        if not log and (await self._redis.ask("HGET", keys.meta(shard), "tip") or NONE) != tip:
            return None
        return tree

    async def prediction_trees(self, shard: int) -> dict[bytes, TreeId]:
        """Return the trees of a shard's predictions by the prediction's id, as far as the log reaches back.

        The predictions themselves do not contain their tree.
        """
        found: dict[bytes, TreeId] = {}
        for _, (_, data) in await self._redis.ask("XRANGE", self._keys.log(shard), "-", "+"):
            entry = LogEntry.decode(data)
            for record in entry.records():
                if isinstance(record, PredictionAdded):
                    found[record.id] = entry.tree
        return found


def parse_pairs(flat: Iterable[bytes]) -> Pairs:
    """Return a hash from a reply of Redis: name, value, name, value."""
    each = iter(flat)
    return dict(zip(each, each, strict=True))
