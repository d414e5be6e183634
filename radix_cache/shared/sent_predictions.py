"""The predictions that a gateway has sent to Redis, each kept until Redis has taken its withdrawal."""

import asyncio
import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass

from radix_cache.match import WorkerId
from radix_cache.redis.call import ScriptAnswer
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.tree_store import NODES_PER_CALL_MAX, TreeStore


@dataclass(frozen=True, slots=True)
class _SentPrediction:
    """A prediction that was sent to Redis."""

    shard: int
    identity: bytes


class SentPredictions:
    """This process's predictions in Redis; beyond `count_max` the oldest are withdrawn."""

    def __init__(
        self, store: TreeStore, replica: TreeReplica, count_max: int, prefix: bytes | None = None
    ) -> None:
        self.prefix = prefix or os.urandom(8)
        """The prefix of the ids of this process's predictions."""
        self._store = store
        self._replica = replica
        self._count_max = count_max
        self.by_writer: dict[tuple[WorkerId, str], _SentPrediction] = {}
        """The predictions by worker and writer."""
        self._withdrawals_lost = False
        """Whether Redis may have predictions of requests that have ended."""
        self._loads_seen = 0
        self._orphaned: Collection[bytes] = ()
        """Such predictions at the last comparison; their withdrawals may have been under way."""

    def add(self, worker: WorkerId, writer: str, shard: int) -> bytes:
        """Register a new prediction in place of the writer's former one, and return its id."""
        if (worker, writer) in self.by_writer:
            self.withdraw(worker, writer)
        if len(self.by_writer) >= self._count_max:
            self.withdraw(*next(iter(self.by_writer)))
        number = hashlib.blake2b(f"{worker}\0{writer}".encode(), digest_size=8).digest()
        identity = self.prefix + number
        self.by_writer[worker, writer] = _SentPrediction(shard, identity)
        return identity

    def withdraw(self, worker: WorkerId, writer: str) -> None:
        """Withdraw the writer's prediction, if there is one."""
        sent = self.by_writer.pop((worker, writer), None)
        if sent is not None:
            self._store.withdraw(sent.shard, [sent.identity]).add_done_callback(self._note_answer)

    def compared(self, *, lost: bool) -> None:
        """Withdraw once more the predictions of ended requests that Redis still has.

        Called after the replica was compared with Redis; `lost`: it cannot follow some shards.
        """
        # A new snapshot may follow a failover, which may have lost withdrawals that Redis had taken.
        if lost or self._loads_seen != self._replica.loads:
            self._withdrawals_lost = True
        self._loads_seen = self._replica.loads
        if self._withdrawals_lost and not lost:
            self._withdraw_again()

    def _withdraw_again(self) -> None:
        under_way = {sent.identity for sent in self.by_writer.values()}
        orphaned = {
            identity: shard
            for shard, identity, _ in self._replica.predictions_under_way()
            if identity.startswith(self.prefix) and identity not in under_way
        }
        by_shard: dict[int, list[bytes]] = {}
        for identity in orphaned.keys() & self._orphaned:
            by_shard.setdefault(orphaned[identity], []).append(identity)
        for shard, identities in by_shard.items():
            for at in range(0, len(identities), NODES_PER_CALL_MAX):
                part = identities[at : at + NODES_PER_CALL_MAX]
                self._store.withdraw(shard, part).add_done_callback(self._note_answer)
        self._orphaned = orphaned.keys()
        self._withdrawals_lost = bool(orphaned)

    def _note_answer(self, answer: "asyncio.Future[ScriptAnswer]") -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._withdrawals_lost = True
