"""What one simulated gateway knows of the fleet: loads, speeds, and which prefixes are on their way to a worker.

As in gateway/dispatch, a request counts from the moment of dispatch, and is taken back at its first token and at
its end. Several gateways may share one view (loads in Redis, exact), or each has its own, which learns of the other
gateways' dispatches later, or never.
"""

from array import array
from collections.abc import Mapping, Sequence

from policies.latency_model import computed_tokens, learn_step
from policies.routing.protocol import Candidate
from policies.simulation.step_time import StepTime
from policies.simulation.trace import BLOCK_TOKENS
from radix_cache.match import WorkerId
from radix_cache.tree import RadixTree
from workers.worker import Speed, WorkerSnapshot

YOUNG_SECONDS = 600.0
"""After this the age of a worker does not matter any more."""

Prediction = tuple[int, int]
"""Worker, and number of the request that brings a prefix there."""


class GatewayView:
    """The view of one gateway; workers are known by their place in the fleet."""

    def __init__(self, workers: Sequence[WorkerId], *, kv_tokens: int, times: StepTime) -> None:
        self._ids = workers
        self._kv_tokens_max = kv_tokens
        self._chunk_tokens = times.chunk_tokens
        self._speeds = [Speed(ms_per_token=times.ms_per_token)] * len(workers)
        self._queued = [0] * len(workers)
        self._since = [0.0] * len(workers)
        self._streams = [0] * len(workers)
        self._kv_tokens = [0] * len(workers)
        self._snapshots: list[WorkerSnapshot | None] = [None] * len(workers)
        self._bare: list[Candidate | None] = [None] * len(workers)
        self._joined: dict[int, float] = {}
        self._predicted: RadixTree[Prediction] = RadixTree()

    def candidates(
        self,
        confirmed: Mapping[int, int],
        blocks: "array[int]",
        prompt_tokens: int,
        up: Sequence[int],
        now: float,
    ) -> list[Candidate]:
        """Return the workers in `up`, each with what it holds of the prompt or is about to hold."""
        held = dict(confirmed)
        for (worker, _), count in self._predicted.match(blocks).items():
            if count > held.get(worker, 0):
                held[worker] = count
        found = []
        for worker in up:
            blocks_held = held.get(worker)
            if blocks_held is None:
                found.append(self._bare[worker] or self._unmatched(worker, now))
            else:
                matched = min(blocks_held * BLOCK_TOKENS, prompt_tokens)
                found.append(Candidate(worker=self.snapshot(worker, now), matched_tokens=matched))
        return found

    def snapshot(self, worker: int, now: float) -> WorkerSnapshot:
        """Return a worker as policies see it."""
        found = self._snapshots[worker]
        if found is None or self._queued[worker] or worker in self._joined:
            found = self._snapshots[worker] = WorkerSnapshot(
                id=self._ids[worker],
                tokens_queued=self._queued[worker],
                tokens_computed=self._computed(worker, now),
                streams=self._streams[worker],
                kv_tokens=self._kv_tokens[worker],
                kv_tokens_max=self._kv_tokens_max,
                chunk_tokens=self._chunk_tokens,
                speed=self._speeds[worker],
                age_seconds=self._age(worker, now),
            )
        return found

    def join(self, worker: int, now: float) -> None:
        """Record that a worker has joined or come back."""
        self._joined[worker] = now
        self._changed(worker)

    def _age(self, worker: int, now: float) -> float | None:
        since = self._joined.get(worker)
        if since is None:
            return None
        if now - since > YOUNG_SECONDS:
            del self._joined[worker]
        return now - since

    def has_room(self, worker: int, tokens: int) -> bool:
        """Return whether so many more tokens fit into a worker's KV memory, as far as is known."""
        return self._streams[worker] == 0 or self._kv_tokens[worker] + tokens <= self._kv_tokens_max

    def queued(self, worker: int) -> int:
        """Return the uncached tokens sent to a worker that have not brought a first token."""
        return self._queued[worker]

    def dispatched(self, worker: int, uncached_tokens: int, kv_tokens: int, now: float) -> None:
        """Count a request that is sent to a worker."""
        if not self._queued[worker]:
            self._since[worker] = now
        self._queued[worker] += uncached_tokens
        self._kv_tokens[worker] += kv_tokens
        self._streams[worker] += 1
        self._changed(worker)

    def predict(self, worker: int, number: int, blocks: "array[int]", now: float) -> None:
        """Expect that a request brings the prefix of these blocks to a worker."""
        self._predicted.record(blocks, (worker, number), now)

    def first_token(self, worker: int, uncached_tokens: int, now: float) -> None:
        """Take the tokens of a request that has its first token out of the worker's queue."""
        self._since[worker] = now
        self._queued[worker] -= uncached_tokens
        self._changed(worker)

    def settle(self, worker: int, number: int) -> None:
        """Drop the prediction of a request: its prefix has arrived, or never will."""
        self._predicted.forget((worker, number))

    def ended(self, worker: int, kv_tokens: int) -> None:
        """Take a request that has ended off the worker's load."""
        self._kv_tokens[worker] -= kv_tokens
        self._streams[worker] -= 1
        self._changed(worker)

    def record_step(self, worker: int, tpot_ms: float) -> None:
        """Learn a worker's speed from a stream with tokens that came `tpot_ms` apart."""
        self._speeds[worker] = learn_step(self._speeds[worker], tpot_ms)
        self._changed(worker)

    def _unmatched(self, worker: int, now: float) -> Candidate:
        bare = Candidate(worker=self.snapshot(worker, now))
        if not self._queued[worker] and worker not in self._joined:
            self._bare[worker] = bare
        return bare

    def _computed(self, worker: int, now: float) -> int:
        ms = 1000 * (now - self._since[worker])
        return computed_tokens(ms, self._queued[worker], self._speeds[worker])

    def _changed(self, worker: int) -> None:
        self._snapshots[worker] = self._bare[worker] = None
