"""One namespace as Redis has it, field by field and as of one moment: for whoever checks it.

A scan takes its time and meets some nodes before a change and some after it. The log has every change with all
that it wrote; what it tells since the scan began, applied on top, makes the whole as it was at the last change.
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
from radix_cache.shared.keys import REGISTRY, Keys, NamespaceId
from radix_cache.shared.log_records import (LogEntry, NodeHead, Holders, HoldersChanged, NamespaceCleared, NamespaceAdded, NamespaceRemoved, NodeChanged, NodeRemoved, PredictionAdded, decode_head, decode_holders, decode_tenure)

SCAN_COUNT = 512
ATTEMPTS_MAX = 5
NONE = bytes(8)
_NO_RUN: Hashes = array("Q")

Pairs = dict[bytes, bytes]


@dataclass(slots=True)
class DumpedNode:
    """What there is under one key; None is what is missing. `chunks`: further holders."""

    head: NodeHead | None = None
    run: Hashes | None = None
    chunks: dict[int, Holders] = field(default_factory=dict)


@dataclass(slots=True)
class DumpedTree:
    """The nodes of one namespace by key. `unreadable`: fields that are none of a tree's."""

    namespace: NamespaceId
    name: bytes | None
    nodes: dict[int, DumpedNode] = field(default_factory=dict)
    unreadable: dict[bytes, str] = field(default_factory=dict)

    def put(self, name: bytes, value: bytes) -> None:
        """One field, as a scan gives it."""
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
                self.unreadable[name] = "a field of no known kind"
        except (struct.error, ValueError) as err:
            self.unreadable[name] = f"it does not decode: {err}"

    def apply(self, entry: LogEntry) -> None:
        """One change of the log, if it is of this namespace."""
        if entry.namespace != self.namespace:
            return
        for record in entry.records():
            if isinstance(record, NodeChanged):
                node = self._node(record.head.key)
                node.head = record.head
                # A run that the scan met later than this change is of has the change already.
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
    """`current`: of each worker. `last`: the highest number that was ever given; one above it is nobody's."""

    current: dict[str, int]
    last: int


class TreeDumper:
    """Reads the index of one prefix from Redis; changes nothing. All raise RedisDown."""

    def __init__(self, redis: ScriptCaller, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def tenures(self) -> TenureNumbers:
        tenures = parse_pairs(await self._redis.ask("HGETALL", self._keys.workers))
        last = await self._redis.ask("HGET", self._keys.meta(REGISTRY), "tenures")
        if last is None:
            # A registry that was lost counts on from the clock: see lua/tenure.lua.
            last, _ = await self._redis.ask("TIME")
        return TenureNumbers(
            current={name.decode(): decode_tenure(value)[0] for name, value in tenures.items()},
            last=int(last),
        )

    async def names(self) -> dict[NamespaceId, bytes]:
        """Every namespace that has a name."""
        found: dict[NamespaceId, bytes] = {}
        for shard in range(self._keys.shards):
            named = parse_pairs(await self._redis.ask("HGETALL", self._keys.names(shard)))
            found.update((NamespaceId(identity), name) for identity, name in named.items())
        return found

    async def trees(self) -> set[NamespaceId]:
        """Every namespace that has a tree, named or not: looks at every key of every server."""
        found: set[NamespaceId] = set()
        async with self._redis.connect_all() as lines:
            for line in lines:
                found |= await self._trees_at(line)
        return found

    async def _trees_at(self, line: RedisConnection) -> set[NamespaceId]:
        found: set[NamespaceId] = set()
        cursor = b"0"
        while True:
            reply = await line.execute(["SCAN", cursor, "MATCH", self._keys.any_tree, "COUNT", SCAN_COUNT])
            if isinstance(reply, hiredis.ReplyError):
                raise RedisDown(str(reply))
            cursor, page = reply
            for key in page:
                try:
                    namespace = NamespaceId(bytes.fromhex(key.decode().rpartition(":")[2]))
                except ValueError:
                    continue
                if len(namespace) == 8 and self._keys.tree(namespace) == key.decode():
                    found.add(namespace)
            if cursor == b"0":
                return found

    async def tree(self, namespace: NamespaceId) -> DumpedTree:
        """One namespace, as of one moment."""
        for _ in range(ATTEMPTS_MAX):
            tree = await self._taken(namespace)
            if tree is not None:
                return tree
        raise RedisDown(f"namespace {namespace.hex()} changes faster than it can be read")

    async def _taken(self, namespace: NamespaceId) -> DumpedTree | None:
        """None: the log does not go back to where the scan began."""
        keys, shard = self._keys, self._keys.shard(namespace)
        stood, sequence = await self._redis.ask("HMGET", keys.meta(shard), "tip", "sequence")
        tree = DumpedTree(namespace, await self._redis.ask("HGET", keys.names(shard), namespace))
        fields: Pairs = {}
        cursor = b"0"
        while True:
            cursor, page = await self._redis.ask("HSCAN", keys.tree(namespace), cursor, "COUNT", SCAN_COUNT)
            fields.update(parse_pairs(page))
            if cursor == b"0":
                break
        for name, value in fields.items():
            tree.put(name, value)
        log = await self._redis.ask("XRANGE", keys.log(shard), f"({int(sequence or 0)}-1", "+")
        tip = stood or NONE
        for entry in (LogEntry.decode(data) for _, (_, data) in log):
            if entry.before != tip:
                return None
            tree.apply(entry)
            tip = entry.tip
        if not log and (await self._redis.ask("HGET", keys.meta(shard), "tip") or NONE) != tip:
            return None
        return tree

    async def foretold(self, shard: int) -> dict[bytes, NamespaceId]:
        """The namespaces of predictions, as far as the log goes back: the predictions themselves do not tell."""
        found: dict[bytes, NamespaceId] = {}
        for _, (_, data) in await self._redis.ask("XRANGE", self._keys.log(shard), "-", "+"):
            entry = LogEntry.decode(data)
            for record in entry.records():
                if isinstance(record, PredictionAdded):
                    found[record.id] = entry.namespace
        return found


def parse_pairs(flat: Iterable[bytes]) -> Pairs:
    """A hash as Redis replies with it: name, value, name, value."""
    each = iter(flat)
    return dict(zip(each, each, strict=True))
