"""Dispatches of other gateways, their first tokens and ends, learnt from predictions in the prefix index.

Redis reports the sums of all loads with each of its replies (gateway/queueing/shared/membership.py); between two
reports, and where the queue is not kept in Redis, only predictions show what other gateways have sent
(policies/others_load.py). A prompt that has brought a new block is computed when its worker is known to hold its
last one, by the first bytes of the answer or by the worker's KV events.
"""

from collections.abc import Callable

from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import WorkerLoad
from radix_cache.match import WorkerId


class AnnouncedDispatches:
    """Counts the requests of other gateways in the workers' loads.

    It is a PredictionListener (radix_cache/shared/predictions.py).
    `worker_of` returns the worker of a tenure.
    """

    def __init__(self, fleet: Fleet, worker_of: Callable[[int], WorkerId | None]) -> None:
        self._fleet = fleet
        self._worker_of = worker_of
        self._block_sizes: dict[WorkerId, int] = {}
        self._loads: dict[bytes, WorkerLoad] = {}
        """The load that each request is counted in; the index bounds how many there are."""

    def set_block_size(self, worker: WorkerId, tokens: int) -> None:
        """Set the tokens of a block in prompts for a worker: without it, its requests are not counted."""
        self._block_sizes[worker] = tokens

    def forget(self, worker: WorkerId) -> None:
        """Forget the block size of a worker that has left the fleet."""
        self._block_sizes.pop(worker, None)

    def predicted(self, identity: bytes, tenure: int, new_blocks: int, blocks: int, sent_at: float) -> None:
        """Count a request that another gateway has sent."""
        identity_of_worker = self._worker_of(tenure)
        worker = self._fleet.get(identity_of_worker) if identity_of_worker is not None else None
        block_size = self._block_sizes.get(worker.id) if worker is not None else None
        if worker is None or block_size is None:
            return
        self._loads[identity] = worker.load
        worker.load.count_dispatch_elsewhere(
            identity,
            uncached_tokens=max(1, new_blocks * block_size),
            kv_tokens=blocks * block_size,
            sent_at=sent_at,
            speed=worker.speed,
        )

    def prompt_computed(self, identity: bytes) -> None:
        """Take the prompt of a request off its worker's queue: the worker holds it by now."""
        load = self._loads.get(identity)
        if load is not None:
            load.compute_dispatch_elsewhere(identity)

    def prediction_over(self, identity: bytes) -> None:
        """Take off a request that has ended, or goes to another worker."""
        load = self._loads.pop(identity, None)
        if load is not None:
            load.end_dispatch_elsewhere(identity)
