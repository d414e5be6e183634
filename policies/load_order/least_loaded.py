"""The least loaded workers of a model, kept in order as loads change, so that no request compares all workers.

    load, health or report of a worker changes --> noted as changed --> put in order again before the next request

Workers are in groups whose members a request of any length compares alike:

    speed       workers within about a tenth of each other in milliseconds per token
    young       joined lately: policies count such a worker as slower for a while (slow start)
    draining    its queue is being computed, so that its estimated work ahead shrinks as time passes; the others are
                idle, or so long without a first token that no more of the queue counts as computed

In each group there is a heap for each of a few requests (REQUESTS). The key is the estimated cost of one more such
request there that finds nothing cached, in milliseconds: the work ahead, its own prefill, the delay of running
streams, and the price of KV memory (policies/routing/cost.py, without the terms that are equal for all workers).
All queues of a group that drain do so at the same pace, so their keys have the time added and stay in order.

A lightly used worker pays less of the price of compute, by its number of streams (policies/routing/cost.py). So
each worker is also in a group of those with about as many streams: where compute has a price, the groups that are
lightly used are searched too.

Of equal keys a random number decides, so that gateways with the same idle workers do not all choose the same one.
"""

from collections.abc import Collection, Iterable
from functools import partial
from heapq import heappop, heappush
from math import exp, log
from random import Random
from typing import Generic

from policies.latency_model import COMPUTED_MAX
from policies.load_order.load_group import (
    ANY_STREAMS,
    HEAP_SLACK,
    Entry,
    GroupKey,
    Heap,
    LoadGroup,
    Ordered,
    RankedWorker,
    drained_ms,
    remove_outdated,
)
from policies.load_order.ordered_worker import OrderedWorker
from policies.routing.compute_price import ComputePrice, counted_backlog_ms
from policies.routing.cost_options import CostOptions
from policies.routing.estimate import kv_wait_ms, own_ms, wait_ms
from policies.routing.memory_price import delayed_streams, memory_ms
from radix_cache.match import WorkerId
from workers.worker import WorkerSnapshot

RANKED_MAX = 32
"""Of more workers than this, a request is ranked on a shortlist."""

REQUESTS = ((64, 64), (16_384, 256), (1024, 256), (512, 2048))
"""Uncached tokens and output tokens of the requests that the keys are estimated for."""

REQUESTS_BY_STREAMS = 2
"""How many of these the groups by streams have heaps for."""

OF_EACH_MAX = 2
"""Workers that are taken from each heap for one shortlist."""

WORSE_MAX = 1.25
"""A heap is left out if its first worker costs more than so many times the least."""

YOUNG_GROUP_SECONDS = 60.0
"""Below this age a worker is in a group of its own kind."""

SPEED_STEP = log(1.1)
"""Width of a group of speeds, as the logarithm of a factor."""

STREAMS_EXACT = 10
"""Workers with more streams than this are grouped with those that have up to about a tenth more."""

PRICE_MIN = 0.04
"""Below this price of compute no lightly used workers are searched for: they save hardly anything."""

_WEIGHTS = CostOptions()

NO_PRICE = ComputePrice(0.0, 0.0, 0.0)

Head = tuple[float, float, Heap[Ordered], bool]
"""Estimated cost of a request on the first worker of a group, that with the price of compute, and the group's heap;
whether its workers may be lightly used."""


class LeastLoaded(Generic[Ordered]):
    """The workers of one model in the order of their load. See the top of this file."""

    def __init__(self, model: str, workers: Iterable[Ordered], random: Random) -> None:
        self.model = model
        self.backlog_ms = 0.0
        """Milliseconds of queued prefill, as in FleetTotals, of the workers that may get a new request."""
        self.streams = 0
        """Requests under way on these workers."""
        self.able = 0
        """How many workers may get a new request."""
        self.halves = 0
        """How many of these are halves of prefill/decode pairs."""
        self.tokens_per_ms = 0.0
        """Uncached prompt tokens that these workers together compute in a millisecond."""
        self._random = random
        self._serial = 0
        self._workers: dict[WorkerId, RankedWorker[Ordered]] = {}
        # A dict keeps the order of the changes: that of a set would differ from process to process.
        self._changed: dict[WorkerId, None] = {}
        self._groups: dict[GroupKey, LoadGroup[Ordered]] = {}
        self._by_tokens: Heap[Ordered] = []
        for worker in workers:
            self.add(worker)

    def __len__(self) -> int:
        """Return the number of workers, whether they may get requests or not."""
        return len(self._workers)

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._workers

    def add(self, worker: Ordered) -> None:
        """Keep this worker in order from now on."""
        self._workers[worker.id] = RankedWorker(worker)
        self._changed[worker.id] = None
        load = worker.load
        load.on_change = (*load.on_change, partial(self._changed.setdefault, worker.id))

    def remove(self, worker: WorkerId) -> None:
        """Leave this worker out from now on."""
        leaving = self._workers.pop(worker, None)
        if leaving is None:
            return
        self._count_out(leaving)
        self._changed.pop(worker, None)
        load = leaving.worker.load
        load.on_change = tuple(noted for noted in load.on_change if noted.func != self._changed.setdefault)

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

    def least(
        self, now: float, without: Collection[WorkerId] = (), price: ComputePrice = NO_PRICE
    ) -> dict[WorkerId, Ordered]:
        """Return the least loaded workers of each group, except those in `without`. Call `update` first."""
        # Draining groups first: a worker that is found to drain no more moves to the other group of its kind.
        for group in self._looked_at(price):
            if group.draining:
                for heap in group.heaps:
                    while heap and not self._is_current(heap[0], now):
                        heappop(heap)
        found: dict[WorkerId, Ordered] = {}
        groups = self._looked_at(price)
        for at in range(len(REQUESTS)):
            if at == REQUESTS_BY_STREAMS:
                groups = [group for group in groups if group.light_share_min is None]
            heads = self._heads(groups, at, price)
            if not heads:
                break
            limit = WORSE_MAX * min(ms for ms, _, _, light in heads if not light)
            limit_priced = WORSE_MAX * min(priced for _, priced, _, _ in heads)
            for ms, priced, heap, light in heads:
                if priced <= limit_priced or (ms <= limit and not light):
                    self._take(heap, without, found, 1 if light else OF_EACH_MAX)
        return found

    def _looked_at(self, price: ComputePrice) -> list[LoadGroup[Ordered]]:
        """Return the groups with any number of streams, and those whose workers may be lightly used and best."""
        groups = self._groups
        if price.of_fleet < PRICE_MIN:
            return [group for group in groups.values() if group.light_share_min is None]
        found: list[LoadGroup[Ordered]] = []
        for (speed, young, _, streams), group in groups.items():
            least = group.light_share_min
            # No lightly used worker is better than an idle one of its kind.
            if least is None or (
                least < price.light_share and (not streams or (speed, young, False, 0) not in groups)
            ):
                found.append(group)
        return found

    def _heads(
        self, groups: Iterable[LoadGroup[Ordered]], at: int, price: ComputePrice
    ) -> list[Head[Ordered]]:
        """Return the first worker of each group for one of REQUESTS."""
        tokens, _ = REQUESTS[at]
        heads: list[Head[Ordered]] = []
        for group in groups:
            heap = group.heaps[at]
            while heap and heap[0][2] != heap[0][3].serial:
                heappop(heap)
            if heap:
                ranked, light = heap[0][3], group.light_share_min is not None
                ms = heap[0][0] - (drained_ms(ranked.worker) if group.draining else 0.0)
                speed = ranked.worker.learnt.speed
                there = (
                    price.on(speed.ms_per_token, ranked.streams)
                    if light
                    else price.at_speed(speed.ms_per_token)
                )
                priced = ms + there * (speed.fixed_ms + speed.ms_per_token * tokens)
                heads.append((ms, priced, heap, light))
        return heads

    def _is_current(self, entry: Entry[Ordered], now: float) -> bool:
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

    def _take(
        self, heap: Heap[Ordered], without: Collection[WorkerId], found: dict[WorkerId, Ordered], count: int
    ) -> None:
        """Add the first `count` workers of a heap to `found`."""
        kept: Heap[Ordered] = []
        taken = 0
        while heap and taken < count:
            entry = heappop(heap)
            ranked = entry[3]
            if entry[2] == ranked.serial:
                kept.append(entry)
                if ranked.worker.id not in without:
                    found[ranked.worker.id] = ranked.worker
                    taken += 1
        for entry in kept:
            heappush(heap, entry)

    def _put(self, ranked: RankedWorker[Ordered], now: float) -> None:
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
        ranked.backlog_ms = counted_backlog_ms(snapshot)
        ranked.streams = snapshot.streams
        ranked.tokens_per_ms = 1 / per_token
        self.able += 1
        self.halves += ranked.half
        self.backlog_ms += ranked.backlog_ms
        self.streams += ranked.streams
        self.tokens_per_ms += ranked.tokens_per_ms
        young = age is not None and age < YOUNG_GROUP_SECONDS
        ranked.groups = self._groups_of(per_token, young, draining, snapshot.streams)
        costs = [load_ms(snapshot, tokens, output_tokens) for tokens, output_tokens in REQUESTS]
        for group in ranked.groups:
            group.join(ranked, costs, self._random.random())
        if len(self._by_tokens) > 2 * len(self._workers) + HEAP_SLACK:
            remove_outdated(self._by_tokens)
        tokens_queued = float(worker.load.all_tokens_queued)
        heappush(self._by_tokens, (tokens_queued, self._random.random(), ranked.serial, ranked))

    def _groups_of(
        self, ms_per_token: float, young: bool, draining: bool, streams: int
    ) -> tuple[LoadGroup[Ordered], LoadGroup[Ordered]]:
        """Return the group of such workers with any number of streams, and that with about as many."""
        speed = round(log(ms_per_token) / SPEED_STEP)
        if streams > STREAMS_EXACT:
            streams = int(exp(int(log(streams) / SPEED_STEP) * SPEED_STEP))
        light_share_min = streams * exp((speed - 0.5) * SPEED_STEP)
        return (
            self._group((speed, young, draining, ANY_STREAMS), len(REQUESTS), None),
            self._group((speed, young, draining, streams), REQUESTS_BY_STREAMS, light_share_min),
        )

    def _group(self, key: GroupKey, heaps: int, light_share_min: float | None) -> LoadGroup[Ordered]:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = LoadGroup(key, heaps, light_share_min)
        return group

    def _count_out(self, ranked: RankedWorker[Ordered]) -> None:
        """Take a worker out of the sums, and make its entries outdated."""
        ranked.serial = -1
        if not ranked.able:
            return
        ranked.able = False
        self.able -= 1
        self.halves -= ranked.half
        self.streams -= ranked.streams
        self.backlog_ms = self.backlog_ms - ranked.backlog_ms if self.able else 0.0
        self.tokens_per_ms = self.tokens_per_ms - ranked.tokens_per_ms if self.able else 0.0
        for group in ranked.groups:
            group.leave()
            if not group.workers:
                del self._groups[group.key]
        ranked.groups = ()


def load_ms(worker: WorkerSnapshot, tokens: int, output_tokens: int) -> float:
    """Return the estimated cost of a request of `tokens` uncached tokens, without what is equal for all workers."""
    own, kv_tokens, kv_tokens_max = own_ms(worker, tokens), worker.kv_tokens, worker.kv_tokens_max
    ms = wait_ms(worker, tokens) + own
    ms += own * _WEIGHTS.delay_weight * delayed_streams(worker.streams, kv_tokens, kv_tokens_max)
    ms += memory_ms(
        _WEIGHTS.memory_weight,
        tokens_new=tokens,
        output_tokens=output_tokens,
        step_ms=worker.speed.step_ms,
        kv_tokens=kv_tokens,
        kv_tokens_max=kv_tokens_max,
    )
    return ms + kv_wait_ms(worker, tokens + output_tokens, output_tokens)


def _is_draining(worker: OrderedWorker) -> bool:
    """Return whether the worker's estimated work ahead shrinks as time passes."""
    queued = worker.load.all_tokens_queued
    return queued > 0 and worker.load.computed(worker.learnt.speed) < int(queued * COMPUTED_MAX)
