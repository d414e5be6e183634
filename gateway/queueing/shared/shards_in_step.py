"""Keeps the shards of one model's tenants in step: exchanges their loads and the progress of their turns.

    shard --its loads, its progress--> one gateway --those of the other shards and cells--> the next shard

To each other shards are as cells are (gateway/cells/cell_loads.py): each counts what the others have on a worker,
and none gets far ahead of another one in which requests wait (policies/cell_turns.py). One gateway visits them all,
those first whose turns are furthest behind: each gets the loads that those before it have just taken, and gives its
turns then. In between a shard gets the load of the others from the gateways, which send what they have counted with
every request.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gateway.fleet.loads import Loads
from gateway.queueing.shared.queue_messages import CellState
from gateway.queueing.shared.shared_queue import SharedQueue
from gateway.queueing.shared.shared_turns import SharedTurns
from policies.cell_turns import QueueProgress, TurnBounds, turn_bounds
from policies.others_load import NO_TOTALS, LoadTotals
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.index_maintenance import ACQUIRE_LEASE

PERIOD_SECONDS = 0.1
IDLE_SECONDS = 0.5
"""How often shards without any request are visited, and how often other gateways look whether the one that visits
them is gone.
"""

LEASE_MS = 1500
BOUNDS_MS = 1000
"""How long the bounds of turns hold."""


class ShardsInStep:
    """The shards of the queue, each with its last reported state."""

    def __init__(self, queue: SharedTurns, window_of: Callable[[str], int]) -> None:
        """`window_of` returns the window of all workers of a queue together, in tokens."""
        self._queue = queue
        self._window_of = window_of
        self._states: dict[SharedQueue, CellState] = {}

    def forget(self) -> None:
        """Drop the reported states: another gateway visits the shards."""
        self._states.clear()

    async def ask(self) -> CellState:
        """Return the state of all shards together, without sending them anything."""
        self._states = {
            shard: await shard.exchange_with_cells(None, {}, BOUNDS_MS) for shard in self._queue.shards
        }
        return _of_all(self._states.values())

    async def visit(self, others: Loads, progress: Sequence[Mapping[str, QueueProgress]]) -> CellState:
        """Send each shard the loads and progress of the others, and return the state of all together.

        `others`, `progress`: what other cells have on workers, and how far each of them is.
        """
        before, self._states = self._states, {}
        states: dict[SharedQueue, CellState] = {}
        for shard in self._queue.shards:
            if shard in before:
                states[shard] = before[shard]
            elif len(self._queue.shards) > 1:
                states[shard] = await shard.exchange_with_cells(None, {}, BOUNDS_MS)
            else:
                states[shard] = CellState()
        all_loads = sum_of_loads([others, *(state.loads for state in states.values())])
        for shard in sorted(states, key=lambda each: _furthest_behind(states[each])):
            own, beside = (
                states[shard],
                [state.progress for other, state in states.items() if other is not shard],
            )
            _take_off(all_loads, own.loads)
            bounds = self._bounds(own, [*progress, *beside])
            states[shard] = await shard.exchange_with_cells(dict(all_loads), bounds, BOUNDS_MS)
            _add(all_loads, states[shard].loads)
        self._states = states
        return _of_all(states.values())

    def _bounds(self, own: CellState, others: Sequence[Mapping[str, QueueProgress]]) -> dict[str, TurnBounds]:
        """Return the bounds of one shard's turns, by queue."""
        found = {}
        for queue, progress in own.progress.items():
            beside = [other[queue] for other in others if queue in other]
            if beside:
                found[queue] = turn_bounds(progress, beside, self._window_of(queue))
        return found


class ShardVisits:
    """Visits the shards every period, while no other gateway does."""

    def __init__(self, shards: ShardsInStep, scripts: ScriptCaller, key: str, gateway: str) -> None:
        """`key`: of the lease. `gateway`: this gateway's name."""
        self._shards = shards
        self._scripts = scripts
        self._key = key
        self._gateway = gateway

    async def run(self) -> None:
        """Visit the shards every period, or check whether another gateway does, until cancelled."""
        while True:
            try:
                mine = await self._scripts.call(ACQUIRE_LEASE, [self._key], [self._gateway, LEASE_MS])
            except RedisDown:
                mine = 0
            if mine != 1:
                self._shards.forget()
                await asyncio.sleep(IDLE_SECONDS)
                continue
            found = await self._shards.visit({}, ())
            await asyncio.sleep(PERIOD_SECONDS if found.loads else IDLE_SECONDS)


def _of_all(states: Collection[CellState]) -> CellState:
    """Return the state of several shards together."""
    return CellState(
        loads=sum_of_loads(state.loads for state in states),
        progress=_progress_of_all(state.progress for state in states),
    )


def sum_of_loads(several: Iterable[Loads]) -> dict[WorkerId, LoadTotals]:
    """Return the loads of workers, summed over several parts."""
    found: dict[WorkerId, LoadTotals] = {}
    for loads in several:
        _add(found, loads)
    return found


def _add(sums: dict[WorkerId, LoadTotals], loads: Loads) -> None:
    for worker, load in loads.items():
        before = sums.get(worker, NO_TOTALS)
        sums[worker] = LoadTotals(
            before.tokens_queued + load.tokens_queued,
            before.streams + load.streams,
            before.kv_tokens + load.kv_tokens,
        )


def _take_off(sums: dict[WorkerId, LoadTotals], loads: Loads) -> None:
    """Take loads off the sums that have them."""
    for worker, load in loads.items():
        before = sums.pop(worker)
        rest = LoadTotals(
            before.tokens_queued - load.tokens_queued,
            before.streams - load.streams,
            before.kv_tokens - load.kv_tokens,
        )
        if rest != NO_TOTALS:
            sums[worker] = rest


def _furthest_behind(state: CellState) -> float:
    """Return how far the turns of a shard have come in which requests wait; of any other shard, without end."""
    return min(
        (progress.virtual_time for progress in state.progress.values() if progress.waiting_weight > 0),
        default=float("inf"),
    )


def _progress_of_all(several: Iterable[Mapping[str, QueueProgress]]) -> dict[str, QueueProgress]:
    """Return how far each queue has come: its shard that is furthest behind of those in which requests wait."""
    found: dict[str, QueueProgress] = {}
    for progress in several:
        for queue, one in progress.items():
            found[queue] = _both(found[queue], one) if queue in found else one
    return found


def _both(one: QueueProgress, other: QueueProgress) -> QueueProgress:
    waiting = [each.virtual_time for each in (one, other) if each.waiting_weight > 0]
    return QueueProgress(
        min(waiting) if waiting else max(one.virtual_time, other.virtual_time),
        one.waiting_weight + other.waiting_weight,
    )
