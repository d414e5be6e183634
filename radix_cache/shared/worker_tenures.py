"""Tenures of workers in the shared index: a worker enters the index with a tenure, and leaves it when that ends.

Blocks are recorded under a tenure, so that all blocks of a worker are gone at once when its tenure ends.
"""

import asyncio
from collections.abc import Callable

from radix_cache.match import WorkerId
from radix_cache.redis.call import ScriptAnswer
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.tree_store import TreeStore

INSTANCE_CHARACTERS_MAX = 200


class WorkerTenures:
    """Requests tenures in Redis, and ends them."""

    def __init__(self, store: TreeStore, replica: TreeReplica) -> None:
        self.on_enrolled: Callable[[WorkerId], None] = lambda worker: None
        """Called when a worker has got the tenure that was requested."""
        self._store = store
        self._replica = replica
        self._enrolling: dict[WorkerId, str] = {}
        self._ending: dict[WorkerId, int] = {}

    def enrol(self, worker: WorkerId, instance: str) -> bool:
        """Request a tenure for `worker` if it has none, or if its tenure belongs to another instance of the worker.

        A worker that has restarted reports another instance id. The tenure of the old instance then ends, and with
        it all of the worker's blocks in the index. Returns whether that was the case.
        """
        if worker in self._enrolling:
            return False
        instance = instance[:INSTANCE_CHARACTERS_MAX]
        known, ends = self._replica.instances.get(worker), self._ending.get(worker, 0)
        # A worker that reports no id is taken for the same instance.
        is_same = known is not None and instance in ("", known)
        if is_same and not ends:
            return False
        if known:
            self._replica.drop_worker(worker)
        self._await_tenure(worker, self._store.tenure(worker, instance, ends), instance)
        return bool(known)

    def end(self, worker: WorkerId) -> None:
        """End the worker's tenure, so that it holds nothing, and request another one."""
        tenure = self._replica.tenures.get(worker)
        if tenure is not None:
            instance = self._replica.instances.get(worker, "")
            # Kept until Redis has taken the change; otherwise the tenure would continue with outdated blocks.
            self._ending[worker] = tenure
            self._replica.drop_worker(worker)
            self._await_tenure(worker, self._store.tenure(worker, ends=tenure), instance)

    def _await_tenure(self, worker: WorkerId, call: "asyncio.Future[ScriptAnswer]", instance: str) -> None:
        self._enrolling[worker] = instance

        def answered(answer: "asyncio.Future[ScriptAnswer]") -> None:
            self._enrolling.pop(worker, None)
            if not answer.cancelled() and answer.exception() is None:
                result = answer.result()
                assert isinstance(result, int)
                if result != self._ending.get(worker):
                    self._ending.pop(worker, None)
                # The registry's message brings the same a moment later.
                self._replica.enrol(worker, result, instance)
                self.on_enrolled(worker)

        call.add_done_callback(answered)
