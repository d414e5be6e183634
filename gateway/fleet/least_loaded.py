"""The least loaded workers of a model, kept in order as loads change, so that no request looks at all workers.

    load, health or report of a worker changes --> noted as changed --> put in order again before the next question

Workers are in groups whose members a request of any length compares alike:

    speed       workers within about a tenth of each other in milliseconds per token
    young       joined lately: policies count such a worker as slower for a while (slow start)
    draining    its queue is being computed, so that its estimated work ahead shrinks as time passes; the others are
                idle, or so long without a first token that no more of the queue counts as computed

In each group there is a heap for each of a few requests (REQUESTS). The key is the estimated cost of one more such
request there that finds nothing cached, in milliseconds: the work ahead, its own prefill, the delay of running
streams, and KV memory that fills up (policies/routing/cost.py, without the terms that are equal for all workers).
All queues of a group that drain do so at the same pace, so their keys have the time added and stay in order.

Entries are deleted lazily: each worker's latest entry has its current serial number, older ones are skipped. Of
equal keys a random number decides, so that gateways with the same idle workers do not all choose the same one.
"""

from collections.abc import Collection, Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from math import log
from random import Random

from gateway.fleet.worker import Worker
from policies.latency_model import COMPUTED_MAX, PACE
from policies.routing.cost import DECODE_SLOWDOWN_MS, CostOptions
from policies.routing.estimate import kv_wait_ms, own_ms, wait_ms
from radix_cache.match import WorkerId
from workers.worker import WorkerSnapshot

REQUESTS = ((64, 64), (1024, 256), (16_384, 256), (512, 2048))
"""Uncached tokens and output tokens of the requests that the keys are estimated for."""

OF_EACH_MAX = 2
"""Workers that are taken from each heap for one shortlist."""

WORSE_MAX = 1.25
"""A heap is left out if its first worker costs more than so many times the least."""

YOUNG_SECONDS = 60.0
"""Below this age a worker is in a group of its own kind."""

SPEED_STEP = log(1.1)
"""Width of a group of speeds, as the logarithm of a factor."""

HEAP_SLACK = 64
"""Entries that a heap may have beyond twice its workers before outdated ones are removed."""

_WEIGHTS = CostOptions()

Group = tuple[int, bool, bool]
"""Speed, young, draining."""


class RankedWorker:
    """A worker as it was when its load last changed."""

    __slots__ = ("able", "backlog_ms", "group", "half", "serial", "streams", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.serial = 0
        """The number of its current entries."""
        self.able = False
        """Whether it may get a new request."""
        self.half = False
        """Whether it is half of a prefill/decode pair."""
        self.group: Group = (0, False, False)
        self.backlog_ms = 0.0
        self.streams = 0


Entry = tuple[float, float, int, RankedWorker]
"""Key, random number, serial number, worker."""


class LeastLoaded:
    """The workers of one model in the order of their load. See the top of this file."""

    def __init__(self, model: str, workers: Iterable[Worker], random: Random) -> None:
        self.model = model
        self.backlog_ms = 0.0
        """Milliseconds of queued prefill, summed over the workers that may get a new request."""
        self.streams = 0
        """Requests under way on these workers."""
        self.able = 0
        """How many workers may get a new request."""
        self.halves = 0
        """How many of these are halves of prefill/decode pairs."""
        self._random = random
        self._serial = 0
        self._workers: dict[WorkerId, RankedWorker] = {}
        self._changed: set[WorkerId] = set()
        self._groups: dict[Group, tuple[list[Entry], ...]] = {}
        self._by_tokens: list[Entry] = []
        for worker in workers:
            self.add(worker)

    def __len__(self) -> int:
        """Return the number of workers, whether they may get requests or not."""
        return len(self._workers)

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._workers

    def add(self, worker: Worker) -> None:
        """Keep this worker in order from now on."""
        self._workers[worker.id] = RankedWorker(worker)
        self._changed.add(worker.id)
        load = worker.load
        load.on_change = (*load.on_change, partial(self._changed.add, worker.id))

    def remove(self, worker: WorkerId) -> None:
        """Leave this worker out from now on."""
        leaving = self._workers.pop(worker, None)
        if leaving is None:
            return
        self._count_out(leaving)
        self._changed.discard(worker)
        load = leaving.worker.load
        load.on_change = tuple(noted for noted in load.on_change if noted.func != self._changed.add)

    def close(self) -> None:
        """Leave all workers out."""
        for worker in list(self._workers):
            self.remove(worker)

    def update(self, now: float) -> None:
        """Put the workers in order whose load has changed; `now` is in seconds on the clock of the loads."""
        if self._changed:
            changed = list(self._changed)
            self._changed.clear()
            for worker in changed:
                self._put(self._workers[worker], now)

    def least(self, now: float, without: Collection[WorkerId] = ()) -> dict[WorkerId, Worker]:
        """Return the least loaded workers of each group, except those in `without`. Call `update` first."""
        # Draining groups first: a worker that is found to drain no more moves to the other group of its kind.
        for group in [group for group in self._groups if group[2]]:
            for heap in self._groups[group]:
                while heap and not self._is_current(heap[0], now):
                    heappop(heap)
        found: dict[WorkerId, Worker] = {}
        for at in range(len(REQUESTS)):
            heads = self._heads(at, now)
            limit = WORSE_MAX * min(heads, default=(0.0,))[0]
            for ms, _, heap in heads:
                if ms <= limit:
                    self._take(heap, without, found)
        return found

    def _heads(self, at: int, now: float) -> list[tuple[float, Group, list[Entry]]]:
        """Return the heaps for prompts of one length, each with the least cost in it; drop empty groups."""
        heads: list[tuple[float, Group, list[Entry]]] = []
        for group, heaps in list(self._groups.items()):
            heap = heaps[at]
            while heap and heap[0][2] != heap[0][3].serial:
                heappop(heap)
            if heap:
                drained = _drained_ms(heap[0][3].worker) if group[2] else 0.0
                heads.append((heap[0][0] - drained, group, heap))
            else:
                del self._groups[group]
        return heads

    def _is_current(self, entry: Entry, now: float) -> bool:
        """Return whether an entry of a draining group is up to date; move a worker that drains no more."""
        ranked = entry[3]
        if entry[2] != ranked.serial:
            return False
        if _is_draining(ranked.worker):
            return True
        self._put(ranked, now)
        return False

    def fewest_tokens_queued(self, closed: Collection[WorkerId]) -> int | None:
        """Return the fewest tokens that gateways have queued on a worker outside `closed`; None without a worker.

        Call `update` first.
        """
        heap, kept, fewest = self._by_tokens, [], None
        while heap and fewest is None:
            entry = heappop(heap)
            if entry[2] != entry[3].serial:
                continue
            kept.append(entry)
            if entry[3].worker.id not in closed:
                fewest = int(entry[0])
        for entry in kept:
            heappush(heap, entry)
        return fewest

    def _take(self, heap: list[Entry], without: Collection[WorkerId], found: dict[WorkerId, Worker]) -> None:
        """Add the first workers of a heap to `found`."""
        kept: list[Entry] = []
        taken = 0
        while heap and taken < OF_EACH_MAX:
            entry = heappop(heap)
            ranked = entry[3]
            if entry[2] == ranked.serial:
                kept.append(entry)
                if ranked.worker.id not in without:
                    found[ranked.worker.id] = ranked.worker
                    taken += 1
        for entry in kept:
            heappush(heap, entry)

    def _put(self, ranked: RankedWorker, now: float) -> None:
        """Put a worker in order by its present load, and count it in the sums."""
        worker = ranked.worker
        self._count_out(ranked)
        self._serial += 1
        ranked.serial = self._serial
        if not worker.able:
            return
        snapshot = worker.snapshot(now)
        age, per_token = snapshot.age_seconds, snapshot.speed.ms_per_token
        draining = _is_draining(worker)
        ranked.able, ranked.half = True, snapshot.disaggregation is not None
        ranked.backlog_ms, ranked.streams = snapshot.tokens_queued * per_token, snapshot.streams
        self.able += 1
        self.halves += ranked.half
        self.backlog_ms += ranked.backlog_ms
        self.streams += ranked.streams
        ranked.group = (round(log(per_token) / SPEED_STEP), age is not None and age < YOUNG_SECONDS, draining)
        heaps = self._groups.get(ranked.group)
        if heaps is None:
            heaps = self._groups[ranked.group] = tuple([] for _ in REQUESTS)
        drained = _drained_ms(worker) if draining else 0.0
        for heap, (tokens, output_tokens) in zip(heaps, REQUESTS, strict=True):
            self._push(heap, load_ms(snapshot, tokens, output_tokens) + drained, ranked)
        self._push(self._by_tokens, float(worker.load.all_tokens_queued), ranked)

    def _push(self, heap: list[Entry], key: float, ranked: RankedWorker) -> None:
        if len(heap) > 2 * len(self._workers) + HEAP_SLACK:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].serial]
            heapify(heap)
        heappush(heap, (key, self._random.random(), ranked.serial, ranked))

    def _count_out(self, ranked: RankedWorker) -> None:
        """Take a worker out of the sums, and make its entries outdated."""
        ranked.serial = -1
        if ranked.able:
            ranked.able = False
            self.able -= 1
            self.halves -= ranked.half
            self.streams -= ranked.streams
            self.backlog_ms = self.backlog_ms - ranked.backlog_ms if self.able else 0.0


def load_ms(worker: WorkerSnapshot, tokens: int, output_tokens: int) -> float:
    """Return the estimated cost of a request of `tokens` uncached tokens, without what is equal for all workers."""
    own = own_ms(worker, tokens)
    ms = wait_ms(worker, tokens) + own + own * _WEIGHTS.harm * worker.streams
    if worker.kv_tokens_max and worker.kv_tokens:
        full = min(1.0, worker.kv_tokens / worker.kv_tokens_max)
        ms += _WEIGHTS.decode_weight * output_tokens * DECODE_SLOWDOWN_MS * full
        ms += kv_wait_ms(worker, tokens + output_tokens, output_tokens)
    return ms


def _is_draining(worker: Worker) -> bool:
    """Return whether the worker's estimated work ahead shrinks as time passes."""
    queued = worker.load.all_tokens_queued
    return queued > 0 and worker.load.computed(worker.learnt.speed) < int(queued * COMPUTED_MAX)


def _drained_ms(worker: Worker) -> float:
    """Return the milliseconds of work that a queue that drains loses in the time that the clock has run."""
    return 1000 * PACE * worker.load.clock()
