"""The parts of a gateway that is in a cell: its lease among all cells, and the Redis that they share."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.cells.cell_loads import CellLoads
from gateway.cells.home_workers import HomeWorkers
from gateway.cells.living_cells import LivingCells
from gateway.dispatch.dispatch import Dispatch
from gateway.process.drain_state import DrainState
from gateway.settings.stores import RedisSettings
from gateway.settings.tree import Settings
from radix_cache.redis.scripts import ScriptCaller


@dataclass(frozen=True, slots=True, kw_only=True)
class CellParts:
    """What a gateway that is in a cell has besides the others."""

    redis: RedisSettings
    """The Redis that all cells share."""
    scripts: ScriptCaller
    """Calls scripts there."""
    living: LivingCells

    @classmethod
    def create(cls, settings: Settings, drain_state: DrainState, stack: AsyncExitStack) -> "CellParts | None":
        """Return the parts, which the stack closes; None if the settings name no cell. Nothing is sent yet."""
        cells = settings.cells
        if cells is None:
            return None
        scripts = ScriptCaller(cells.redis_url)
        stack.push_async_callback(scripts.close)
        living = LivingCells(
            scripts,
            prefix=cells.redis_prefix,
            cell=cells.name,
            url=cells.url,
            lease_seconds=cells.lease_seconds,
            serves=lambda: drain_state.ready,
        )
        stack.push_async_callback(living.close)
        redis = replace(settings.redis, url=cells.redis_url, prefix=cells.redis_prefix)
        return cls(redis=redis, scripts=scripts, living=living)

    def loads(self, dispatch: Dispatch) -> CellLoads:
        """Return what shares the loads of this cell's workers with the other cells."""
        return CellLoads(
            self.scripts,
            prefix=self.redis.prefix,
            cell=self.living.cell,
            fleet=dispatch.fleet,
            queue=dispatch.queue,
            windows=dispatch.window.of_all_gateways,
            homes=HomeWorkers(self.living),
        )
