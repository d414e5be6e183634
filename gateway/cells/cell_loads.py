"""Loads of cells: each cell publishes its load on the shared workers, and the progress of its turns, by lease.

    queue of this cell --its state--> Redis that all cells share --states of the other cells--> queue of this cell

One gateway of each cell does it, a few times a second, with or without requests. A gateway that does not reach the
Redis of its cell publishes nothing, so that its lease ends and another gateway takes over. The cell's queue counts
the other cells' work on a worker like its own: in the choice of a worker, and in the tokens ahead of a request. The
state is read just before it is published: published a period later, it made the mean TTFT near saturation a tenth
longer (ten cells of ten simulated workers each). Then each shard of the queue is visited, once in a period, with
the loads of the others.

The loads of the other cells are known late, those of this cell at once. So that cells do not all take the worker
that was idle a moment ago, each prefers the workers that are at home there (home_workers.py). And a cell that has
filled a worker would keep it: so each cell counts at most the others' fair part of a worker's window, and has its
own part whatever they do. A worker is the same in two cells if its id and its address are.

So that tenants have equal shares whichever cells they belong to, no cell's turns get far ahead of another one's
(policies/cell_turns.py).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import cast

from gateway.cells.cell_report import CellReport, decode_report, encode_report
from gateway.cells.home_workers import HomeWorkers
from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import Loads
from gateway.fleet.worker import Worker
from gateway.queueing.dispatch_windows import DispatchWindows
from gateway.queueing.shared.keys import model_of
from gateway.queueing.shared.queue_messages import CellState
from gateway.queueing.shared.shards_in_step import ShardsInStep
from gateway.queueing.shared.shared_turns import SharedTurns
from policies.cell_ownership import fair_part
from policies.others_load import LoadTotals
from radix_cache.match import WorkerId
from radix_cache.redis.call import CommandArgument, RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.1
IDLE_SECONDS = 0.2
"""How often a cell without any request exchanges its state with the others."""

STANDBY_SECONDS = 0.5
"""How often the other gateways of a cell look whether the one that shares its loads is gone."""

LEASE_MS = 1000
"""How long the loads of a cell count after its last report."""

MODELS_MAX = 8
"""The most models of one worker of which the windows are compared."""

_SHARE = Script.from_text(
    """#!lua
-- KEYS: hash: cell -> the gateway that publishes its state, the end of its lease in ms, the state.
-- ARGV: cell, gateway, lease in ms, the state.
-- Returns the states of the other cells; 0 if another gateway of the cell publishes its state.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local others, own, all = {}, false, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local gateway, deadline, state = unpack(cmsgpack.unpack(all[i + 1]))
  if deadline < now then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    others[#others + 1] = state
  elseif gateway ~= ARGV[2] then
    return 0
  end
end
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack({ARGV[2], now + ARGV[3], ARGV[4]}))
return others
"""
)


@dataclass(slots=True)
class _OthersSum:
    """What several other cells have on one worker."""

    cells: int = 0
    tokens_queued: int = 0
    streams: int = 0
    kv_tokens: int = 0


class CellLoads:
    """Shares the loads of this gateway's cell, and hands those of the others to its queue."""

    def __init__(
        self,
        scripts: ScriptCaller,
        *,
        prefix: str,
        cell: str,
        fleet: Fleet,
        queue: SharedTurns,
        windows: DispatchWindows,
        homes: HomeWorkers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`scripts`: the Redis that all cells share. `clock`: seconds, never backwards."""
        self._scripts = scripts
        self._key = f"{prefix}:{{cells}}:loads"
        self._cell = cell
        self._fleet = fleet
        self._queue = queue
        self._shards = ShardsInStep(queue, self._window_of_queue)
        self._windows = windows
        self._homes = homes
        self._clock = clock
        self._reply_at = clock()
        self._away = False

    async def run(self) -> None:
        """Share loads every period; stand by while another gateway of this cell shares them."""
        on_duty = False
        while True:
            self._homes.mark(self._fleet, self._window_of)
            own = await self._shards.ask() if on_duty else CellState()
            try:
                others = await self._share(own) if self._reaches_queue else None
            except RedisDown as err:
                await self._forget_others(err)
                others = None
            on_duty = others is not None
            if others is None:
                self._shards.forget()
                await asyncio.sleep(STANDBY_SECONDS)
                continue
            own = await self._shards.visit(self._fair(others), [other.progress for other in others])
            await asyncio.sleep(PERIOD_SECONDS if own.loads else IDLE_SECONDS)

    @property
    def _reaches_queue(self) -> bool:
        """Whether the Redis of this cell answers; if not, another gateway may be able to read the cell's state."""
        return any(shard.shared for shard in self._queue.shards)

    async def _share(self, own: CellState) -> list[CellReport] | None:
        """Publish this cell's state, and return those of the others; None if another gateway does it.

        Raises RedisDown.
        """
        arguments: list[CommandArgument] = [self._cell, self._queue.gateway, LEASE_MS]
        arguments.append(encode_report(own, self._fleet))
        answer = await self._scripts.call(_SHARE, [self._key], arguments)
        self._reply_at, self._away = self._clock(), False
        return [decode_report(cast(bytes, text)) for text in answer] if isinstance(answer, list) else None

    def _window_of_queue(self, queue: str) -> int:
        """Return the window of all workers of a queue together, in tokens."""
        model = model_of(queue)
        return self._windows.of(model).narrow * len(self._fleet.serving(model))

    def _fair(self, others: Sequence[CellReport]) -> Loads:
        """Return what the other cells have on this gateway's workers: of a window at most their fair part."""
        sums: dict[str, _OthersSum] = {}
        for other in others:
            for load in other.loads:
                worker = self._fleet.get(WorkerId(load.worker))
                if worker is None or worker.address != load.address:
                    continue
                found = sums.setdefault(load.worker, _OthersSum())
                found.cells += 1
                found.tokens_queued += load.tokens_queued
                found.streams += load.streams
                found.kv_tokens += load.kv_tokens
        return {
            WorkerId(name): LoadTotals(
                min(found.tokens_queued, self._fair_part(self._fleet[WorkerId(name)], found.cells)),
                found.streams,
                found.kv_tokens,
            )
            for name, found in sums.items()
        }

    def _fair_part(self, worker: Worker, others: int) -> int:
        """Return how many tokens of a worker's window so many other cells may fill while this one needs its own."""
        return fair_part(self._window_of(worker.models), others)

    def _window_of(self, models: Collection[str]) -> int:
        """Return the window of workers with these models, in tokens."""
        return max((self._windows.of(model).narrow for model in sorted(models)[:MODELS_MAX]), default=0)

    async def _forget_others(self, err: RedisDown) -> None:
        """Stop counting the loads of the other cells, once their leases must have ended."""
        if self._away or self._clock() - self._reply_at < LEASE_MS / 1000:
            return
        self._away = True
        log.warning("the loads of other cells are not known: %s", err)
        await self._shards.visit({}, ())
