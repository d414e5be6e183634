"""What cells have under way on the workers that they share: each cell tells the others, by lease.

    queue of this cell --its loads--> Redis that all cells share --loads of the other cells--> queue of this cell

One gateway of each cell does it, a few times a second, whatever requests there are. The cell's queue then counts
the others' work on a worker as its own gateways': in the choice of a worker, and in what may be ahead of it.

News of the others is late, that of this cell is not. So that cells do not all take the worker that was idle a
moment ago, each prefers the workers that are at home there (home_workers.py). And a cell that has filled a worker
would keep it: so each cell counts at most the others' fair part of a worker's window, and has its own part whatever
they do. A worker is the same in two cells if its id and its address are.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from gateway.cells.home_workers import HomeWorkers
from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import Loads
from gateway.fleet.worker import Worker
from gateway.queueing.dispatch_windows import DispatchWindows
from gateway.queueing.shared.shared_turns import SharedTurns
from policies.cell_ownership import fair_part
from policies.others_load import LoadTotals
from radix_cache.match import WorkerId
from radix_cache.redis.call import CommandArgument, RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.2
STANDBY_SECONDS = 0.5
"""How often the other gateways of a cell look whether the one that shares its loads is gone."""

LEASE_MS = 1000
"""How long the loads of a cell count after it was heard last."""

WORKERS_MAX = 8192
"""Workers whose loads one cell shares."""

MODELS_MAX = 8
"""Models of one worker whose windows are compared."""

_SHARE = Script.from_text(
    """#!lua
-- KEYS: hash: cell -> the gateway that shares its loads, the end of their lease in ms, the loads.
-- ARGV: cell, gateway, lease in ms, the loads.
-- Returns the loads of the other cells; 0 if another gateway of the cell shares its loads.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local others, own, all = {}, false, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local gateway, deadline, loads = unpack(cmsgpack.unpack(all[i + 1]))
  if deadline < now then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    others[#others + 1] = loads
  elseif gateway ~= ARGV[2] then
    return 0
  end
end
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack({ARGV[2], now + ARGV[3], ARGV[4]}))
return others
"""
)


class CellLoad(msgspec.Struct, frozen=True, array_like=True):
    """What one cell has on one worker."""

    worker: str
    address: str
    tokens_queued: int
    streams: int
    kv_tokens: int


@dataclass(slots=True)
class _OthersSum:
    """What several other cells have on one worker."""

    cells: int = 0
    tokens_queued: int = 0
    streams: int = 0
    kv_tokens: int = 0


_decoder = msgspec.msgpack.Decoder(list[CellLoad])


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
        self._windows = windows
        self._homes = homes
        self._clock = clock
        self._heard_at = clock()
        self._away = False

    async def run(self) -> None:
        """Share loads, or stand by while another gateway of this cell does, again and again."""
        own: Loads = {}
        while True:
            self._homes.mark(self._fleet, self._window_of)
            try:
                others = await self._share(own)
            except RedisDown as err:
                await self._forget_others(err)
                others = None
            if others is None:
                own = {}
                await asyncio.sleep(STANDBY_SECONDS)
                continue
            own = await self._exchange(self._fair(others))
            await asyncio.sleep(PERIOD_SECONDS)

    async def _share(self, own: Loads) -> Sequence[bytes] | None:
        """Tell the other cells this one's loads, and return theirs; None if another gateway does it.

        Raises RedisDown.
        """
        told = msgspec.msgpack.encode(list(self._described(own)))
        arguments: list[CommandArgument] = [self._cell, self._queue.gateway, LEASE_MS, told]
        answer = await self._scripts.call(_SHARE, [self._key], arguments)
        self._heard_at, self._away = self._clock(), False
        return cast(Sequence[bytes], answer) if isinstance(answer, list) else None

    def _described(self, own: Loads) -> Iterable[CellLoad]:
        for identity, load in list(own.items())[:WORKERS_MAX]:
            worker = self._fleet.get(identity)
            if worker is not None and worker.provider is None:
                yield CellLoad(identity, worker.address, load.tokens_queued, load.streams, load.kv_tokens)

    def _fair(self, others: Sequence[bytes]) -> Loads:
        """Return what the other cells have on this gateway's workers: of a window at most their fair part."""
        sums: dict[str, _OthersSum] = {}
        for text in others:
            for load in _decoded(text):
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

    async def _exchange(self, others: Loads) -> Loads:
        """Hand the loads of the other cells to this cell's queue, and return this cell's."""
        own: dict[WorkerId, LoadTotals] = {}
        for shard in self._queue.shards:
            own |= await shard.exchange_with_cells(others)
        return own

    async def _forget_others(self, err: RedisDown) -> None:
        """Count the other cells' loads no longer, once their leases must be over."""
        if self._away or self._clock() - self._heard_at < LEASE_MS / 1000:
            return
        self._away = True
        log.warning("the loads of other cells are not known: %s", err)
        await self._exchange({})


def _decoded(text: bytes) -> Sequence[CellLoad]:
    """Return the loads of one cell; none if its gateways are of a version that writes them in another way."""
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError as err:
        log.debug("the loads of a cell cannot be read: %s", err)
        return ()
