"""The tree in Redis, by its verbs. Each is one short script: atomic, bounded, harmless when repeated.

Calls go out in the order in which they are made, many to one round trip. Whoever calls may wait for the answer (the
shard's sequence after the change) or not; it raises RedisDown.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from struct import Struct

from radix_cache.blocks import Hashes
from radix_cache.namespace import Namespace
from radix_cache.redis.call import ScriptAnswer, CommandArgument, Script, read_lua
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, Keys, NamespaceId, namespace_id
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
    """`new_tip` names changes: eight bytes that nobody else makes. `log_entries`: kept in a shard's log, about.

    `library`: the text of all verbs.
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
        self._verbs = Script.library(library, VERBS, when_full=FREEING)
        self._when_full = {verb: Script.from_library_function(library, verb) for verb in FREEING}
        self._scripts = scripts
        self._new_tip = new_tip
        self._log_entries = log_entries

    def hold(
        self,
        namespace: Namespace,
        hashes: Hashes,
        tenure: int,
        tier: Tier = Tier.GPU,
        *,
        since: int = 0,
        prediction: bytes = b"",
        fresh_seconds: int = 60,
    ) -> "asyncio.Future[ScriptAnswer]":
        """The tenure has these blocks in this tier.

        `since`: depth of a node of which it holds something already; the walk begins there, or at the root if it
        turns out otherwise. `fresh_seconds`: a use that soon after another is not written down.
        """
        more = (tenure, int(tier), hashes.tobytes(), since, prediction, fresh_seconds)
        return self._call("hold", namespace_id(namespace), namespace.packed(), *more)

    def shorten(
        self,
        namespace: Namespace,
        hashes: Hashes,
        tenure: int,
        blocks: int,
        tier: Tier = Tier.DISK,
        *,
        since: int = 0,
        below: Iterable[ReplicaNode] = (),
    ) -> "asyncio.Future[ScriptAnswer]":
        """The tenure has at most the first `blocks` of the path in this tier and those before it.

        `since`: depth of the node that has block number `blocks`. `below`: what hangs there, the deepest first.
        """
        keys = b"".join(node.key.to_bytes(8, "little") for node in below)
        more = (tenure, int(tier), blocks, hashes.tobytes(), since, keys)
        return self._call("shorten", namespace_id(namespace), namespace.packed(), *more)

    def cut(
        self, namespace: NamespaceId, cuts: Iterable[tuple[ReplicaNode, int, int]], tier: Tier = Tier.DISK
    ) -> "asyncio.Future[ScriptAnswer]":
        """Of each (node, tenure, blocks) the tenure keeps no more in this tier and those before it.

        The deepest first, NODES_PER_CALL_MAX.
        """
        packed = b"".join(_CUT.pack(node.key, tenure, keep) for node, tenure, keep in cuts)
        return self._call("cut", namespace, b"", int(tier), packed)

    def evict(self, namespace: NamespaceId, nodes: Iterable[ReplicaNode]) -> "asyncio.Future[ScriptAnswer]":
        """These leaves go, unless somebody has used them meanwhile. NODES_PER_CALL_MAX."""
        packed = b"".join(_EVICT.pack(node.key, node.used) for node in nodes)
        return self._call("evict", namespace, b"", packed)

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
    ) -> "asyncio.Future[ScriptAnswer]":
        """A request brings these blocks to the tenure. `identity`: 16 bytes, the writer's own.

        `above`, `depth`: what the tenure holds already need not be told: the path goes on from `depth`, below the
        node `above`.
        """
        key = above.to_bytes(8, "little")
        more = (identity, tenure, milliseconds, key, depth, hashes.tobytes(), PREDICTIONS_MAX)
        return self._call("predict", namespace_id(namespace), namespace.packed(), *more)

    def withdraw(self, shard: int, identities: Iterable[bytes]) -> "asyncio.Future[ScriptAnswer]":
        """Predictions of a shard that did not come true."""
        return self._call("withdraw", NamespaceId(shard.to_bytes(8, "little")), b"", b"".join(identities))

    def clear(self, namespace: NamespaceId) -> "asyncio.Future[ScriptAnswer]":
        """The namespace is empty."""
        return self._call("clear", namespace, b"")

    def tenure(self, worker: str, instance: str = "", ends: int = 0) -> "asyncio.Future[ScriptAnswer]":
        """The worker's tenure: a new one if there is none, if `ends` is it, or if another instance has it."""
        keys = [self.keys.workers, self.keys.log(REGISTRY), self.keys.meta(REGISTRY)]
        tip, channel = self._new_tip(), self.keys.tag(REGISTRY)
        return self._scripts.call(TENURE, keys, [tip, channel, worker, instance, ends, self._log_entries])

    def _call(
        self, verb: str, namespace: NamespaceId, name: bytes, *more: CommandArgument
    ) -> "asyncio.Future[ScriptAnswer]":
        names, shard = self.keys, self.keys.shard(namespace)
        keys = [
            names.tree(namespace),
            names.log(shard),
            names.meta(shard),
            names.names(shard),
            names.predictions(shard),
        ]
        head: list[CommandArgument] = [self._new_tip(), names.tag(shard), namespace, self._log_entries, name]
        arguments = [*head, *more]
        called = self._scripts.call(self._verbs[verb], keys, arguments)
        if verb not in FREEING:
            return called
        return _or_else(called, lambda: self._scripts.call(self._when_full[verb], keys, arguments))


def _or_else(
    called: "asyncio.Future[ScriptAnswer]", instead: "Callable[[], asyncio.Future[ScriptAnswer]]"
) -> "asyncio.Future[ScriptAnswer]":
    """The answer, or that of another call if the server was too full to be given the library."""
    answer: asyncio.Future[ScriptAnswer] = asyncio.get_running_loop().create_future()

    def take(done: "asyncio.Future[ScriptAnswer]") -> None:
        error = done.exception()
        if answer.done():
            return
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)
            answer.exception()  # Whoever does not wait for it does not ask either.

    def answered(done: "asyncio.Future[ScriptAnswer]") -> None:
        full = done.exception() is not None and "OOM" in str(done.exception())
        if full:
            instead().add_done_callback(take)
        else:
            take(done)

    called.add_done_callback(answered)
    return answer
