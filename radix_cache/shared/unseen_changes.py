"""Changes that were sent to Redis and that the replica does not show yet; until then they count as predictions.

sent --> `own` counts the change --> Redis has answered with its number --> the replica shows it: dropped
"""

from collections import deque
from itertools import count

from radix_cache.blocks import Hashes
from radix_cache.local_index import LocalIndex
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.replica import TreeReplica

UNSEEN_MAX = 1024
"""The most changes per shard that are kept until the replica shows them; the oldest are dropped first."""


class UnseenChanges:
    """The changes of this process that its replica does not show yet, counted in its `own` index."""

    def __init__(self, own: LocalIndex, replica: TreeReplica) -> None:
        self._own = own
        self._replica = replica
        self._numbers = count(1)
        self.by_shard: dict[int, deque[tuple[int, WorkerId, str]]] = {}
        """By shard: number in the shard, worker, and name in `own`."""

    def add(self, namespace: Namespace, hashes: Hashes, worker: WorkerId, *, counts: bool) -> str:
        """Return a new name for a change, under which its path counts until the change is shown or refused."""
        change = f"held {next(self._numbers)}"
        if counts:
            self._own.record(namespace, hashes, worker, change)
        return change

    def refused(self, worker: WorkerId, change: str) -> None:
        """Stop counting a change that Redis did not take."""
        self._own.withdraw(worker, change)

    def taken(self, shard: int, sequence: int, worker: WorkerId, change: str) -> bool:
        """Note the number of a change in its shard, and return whether the replica shows it already."""
        known = self._replica.shards.get(shard)
        if known is not None and known.sequence >= sequence:
            self._own.withdraw(worker, change)
            return True
        # A change that never appears is dropped when its prediction ends.
        self.by_shard.setdefault(shard, deque(maxlen=UNSEEN_MAX)).append((sequence, worker, change))
        return False

    def drop_shown(self) -> None:
        """Stop counting the changes that the replica shows by now."""
        for shard, waiting in self.by_shard.items():
            known = self._replica.shards.get(shard)
            while waiting and known is not None and waiting[0][0] <= known.sequence:
                _, worker, change = waiting.popleft()
                self._own.withdraw(worker, change)
