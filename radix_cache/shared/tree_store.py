"""The operations on the tree in Redis. Each is one short script: atomic, bounded and idempotent.

Calls are sent in the order in which they are made, many in one round trip. A caller need not wait for the answer,
which is the shard's sequence number after the change, or raises RedisDown.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from struct import Struct

from radix_cache.blocks import Hashes
from radix_cache.namespace import NAMESPACES_MAX, Namespace
from radix_cache.redis.call import CommandArgument, Script, ScriptAnswer, read_lua
from radix_cache.redis.library import library_functions
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, Keys, TreeId
from radix_cache.shared.node import ReplicaNode
from radix_cache.tiers import Tier

PACKAGE = "radix_cache.shared"
GROWING = ("hold", "predict")
FREEING = ("shorten", "cut", "evict", "withdraw", "clear")
VERBS = (*GROWING, *FREEING)
LIBRARY = read_lua(PACKAGE, "tree", "holders", "log", *VERBS)
TENURE = Script.from_file(PACKAGE, "tenure")

LOG_ENTRIES = 4096
PREDICTIONS_MAX = 4096
NODES_PER_CALL_MAX = 128

_CUT = Struct("<QII")
_EVICT = Struct("<QI")


class TreeStore:
    """Changes the tree in Redis.

    Args:
        scripts: Calls the scripts.
        keys: The names of the keys.
        new_tip: Returns a new id for a change: eight bytes, unique among all gateways.
        log_entries: About how many entries the log of a shard keeps.
        library: The Lua code of all operations.
    """

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: Keys,
        *,
        new_tip: Callable[[], bytes] = lambda: os.urandom(8),
        log_entries: int = LOG_ENTRIES,
        library: str = LIBRARY,
    ) -> None:
        self.keys = keys
        self._verbs = library_functions(library, VERBS, when_full=FREEING)
        self._when_full = {verb: Script.from_library_function(library, verb) for verb in FREEING}
        scripts.bind(self._verbs)
        self._scripts = scripts
        self._new_tip = new_tip
        self._log_entries = log_entries
        self._keys_of = lru_cache(maxsize=NAMESPACES_MAX)(self._new_keys)

    def hold(
        self,
        namespace: Namespace,
        hashes: Hashes,
        tenure: int,
        tier: Tier = Tier.GPU,
        *,
        walk_start: int = 0,
        fresh_seconds: int = 60,
    ) -> "asyncio.Future[ScriptAnswer]":
        """Record that the tenure has these blocks in this tier.

        Args:
            namespace: The namespace of the path.
            hashes: The path.
            tenure: The tenure of the worker.
            tier: The slowest tier of the blocks.
            walk_start: The depth of a node of which the tenure already holds something; the walk begins there, or
                at the root if the tenure holds nothing of that node.
            fresh_seconds: A repeated use within this time is not written.
        """
        more = (tenure, int(tier), hashes.tobytes(), walk_start, fresh_seconds)
        return self._call("hold", self.keys.tree_of(namespace, hashes[0]), namespace.packed(), *more)

    def shorten(
        self,
        namespace: Namespace,
        hashes: Hashes,
        tenure: int,
        blocks: int,
        tier: Tier = Tier.DISK,
        *,
        walk_start: int = 0,
        below: Iterable[ReplicaNode] = (),
    ) -> "asyncio.Future[ScriptAnswer]":
        """Record that the tenure has at most the first `blocks` of the path in this tier and faster ones.

        Args:
            namespace: The namespace of the path.
            hashes: The path.
            tenure: The tenure of the worker.
            blocks: How many leading blocks it keeps at most.
            tier: The slowest tier to which this applies.
            walk_start: The depth of the node that has block number `blocks`, where the walk begins.
            below: The nodes below that node, the deepest first.
        """
        keys = b"".join(node.key.to_bytes(8, "little") for node in below)
        more = (tenure, int(tier), blocks, hashes.tobytes(), walk_start, keys)
        return self._call("shorten", self.keys.tree_of(namespace, hashes[0]), namespace.packed(), *more)

    def cut(
        self, tree: TreeId, cuts: Iterable[tuple[ReplicaNode, int, int]], tier: Tier = Tier.DISK
    ) -> "asyncio.Future[ScriptAnswer]":
        """Cut nodes to a number of blocks under a tenure, in this tier and faster ones.

        `cuts` are (node, tenure, blocks to keep), the deepest node first, at most NODES_PER_CALL_MAX.
        """
        packed = b"".join(_CUT.pack(node.key, tenure, keep) for node, tenure, keep in cuts)
        return self._call("cut", tree, b"", int(tier), packed)

    def evict(self, tree: TreeId, nodes: Iterable[ReplicaNode]) -> "asyncio.Future[ScriptAnswer]":
        """Remove these leaves, at most NODES_PER_CALL_MAX, unless they were used meanwhile."""
        packed = b"".join(_EVICT.pack(node.key, node.used) for node in nodes)
        return self._call("evict", tree, b"", packed)

    def predict(
        self,
        namespace: Namespace,
        hashes: Hashes,
        tenure: int,
        identity: bytes,
        milliseconds: int,
        *,
        above: int = 0,
        depth: int = 0,
        first: int | None = None,
    ) -> "asyncio.Future[ScriptAnswer]":
        """Record that a request brings these blocks to the tenure.

        Args:
            namespace: The namespace of the path.
            hashes: The blocks of the path from `depth` on, which the tenure does not hold yet; may be empty.
            tenure: The tenure of the worker.
            identity: The id of the prediction: 16 bytes.
            milliseconds: How long the prediction counts.
            above: The key of the node that has the block before `hashes`; 0 for none.
            depth: The number of blocks before `hashes`.
            first: The first block of the path; None: the first of `hashes`.
        """
        tree = self.keys.tree_of(namespace, hashes[0] if first is None else first)
        key = above.to_bytes(8, "little")
        more = (identity, tenure, milliseconds, key, depth, hashes.tobytes(), PREDICTIONS_MAX)
        return self._call("predict", tree, namespace.packed(), *more)

    def withdraw(self, shard: int, identities: Iterable[bytes]) -> "asyncio.Future[ScriptAnswer]":
        """Remove the predictions of requests that have ended."""
        return self._call("withdraw", TreeId(shard.to_bytes(8, "little")), b"", b"".join(identities))

    def clear(self, tree: TreeId) -> "asyncio.Future[ScriptAnswer]":
        """Remove all nodes of a tree."""
        return self._call("clear", tree, b"")

    def tenure(self, worker: str, instance: str = "", ends: int = 0) -> "asyncio.Future[ScriptAnswer]":
        """Return the worker's tenure: a new one if it has none, if `ends` is it, or if another instance has it."""
        keys = [self.keys.workers, self.keys.log(REGISTRY), self.keys.meta(REGISTRY)]
        tip, channel = self._new_tip(), self.keys.tag(REGISTRY)
        return self._scripts.call(TENURE, keys, [tip, channel, worker, instance, ends, self._log_entries])

    def _call(
        self, verb: str, tree: TreeId, name: bytes, *more: CommandArgument
    ) -> "asyncio.Future[ScriptAnswer]":
        tag, keys = self._keys_of(tree)
        head: list[CommandArgument] = [self._new_tip(), tag, tree, self._log_entries, name]
        arguments = [*head, *more]
        # Not urgent: no caller waits for it, and Redis spends less on it in a batch.
        called = self._scripts.call(self._verbs[verb], keys, arguments, urgent=False)
        if verb not in FREEING:
            return called
        return _retried_when_full(called, lambda: self._scripts.call(self._when_full[verb], keys, arguments))

    def _new_keys(self, tree: TreeId) -> tuple[str, Sequence[str]]:
        """Return the tag of a tree's shard, and the keys that every change of it has."""
        names, shard = self.keys, self.keys.shard(tree)
        return names.tag(shard), (
            names.tree(tree),
            names.log(shard),
            names.meta(shard),
            names.names(shard),
            names.predictions(shard),
        )


def _retried_when_full(
    called: "asyncio.Future[ScriptAnswer]", instead: "Callable[[], asyncio.Future[ScriptAnswer]]"
) -> "asyncio.Future[ScriptAnswer]":
    """Return the answer of `called`; if the server was too full to load the library, the answer of `instead`."""
    answer: asyncio.Future[ScriptAnswer] = asyncio.get_running_loop().create_future()

    def take(done: "asyncio.Future[ScriptAnswer]") -> None:
        error = done.exception()
        if answer.done():
            return
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)
            answer.exception()  # Retrieved here, because a caller that does not wait never retrieves it.

    def answered(done: "asyncio.Future[ScriptAnswer]") -> None:
        full = done.exception() is not None and "OOM" in str(done.exception())
        if full:
            instead().add_done_callback(take)
        else:
            take(done)

    called.add_done_callback(answered)
    return answer
