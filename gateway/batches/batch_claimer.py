"""BatchClaimer: which batches this gateway works on. It claims what nobody has, as many as it may at a time."""

import asyncio
import logging
from contextlib import suppress

from gateway.batches.batch_run import BatchRun
from gateway.batches.services import BatchParts
from gateway.database.batch_store import LeaseLost
from gateway.database.database import DatabaseDown
from gateway.files.content import ContentDown

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
SWEEP_SECONDS = 600.0
LEAVE_SECONDS_MAX = 2.0


class BatchClaimer:
    """`run` for as long as the gateway lives; `drain` when it stops, then `close`.

    `running_max`: batches at a time. `kept_seconds`: how long those that have ended are kept.
    """

    def __init__(self, at: BatchParts, *, running_max: int, kept_seconds: float) -> None:
        self._at = at
        self._running_max = running_max
        self._kept_seconds = kept_seconds
        self._runs: dict[asyncio.Task[None], BatchRun] = {}
        self._due = asyncio.Event()
        self._closed = False
        self._swept_at: float | None = None

    def wake(self) -> None:
        """There may be something to do."""
        self._due.set()
        for run in self._runs.values():
            run.look()

    async def run(self) -> None:
        while True:
            self._due.clear()
            try:
                await self._claim()
                await self._sweep()
            except DatabaseDown as err:
                log.debug("batches wait for the database: %s", err)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._due.wait()

    async def drain(self, seconds: float) -> None:
        """Begins nothing more; rows that are being asked may end in this time."""
        self._closed = True
        for run in self._runs.values():
            run.leave()
        if self._runs:
            await asyncio.wait(self._runs, timeout=seconds)

    async def close(self) -> None:
        """Other gateways go on at once with what is left."""
        self._closed = True
        runs = dict(self._runs)
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        with suppress(DatabaseDown, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                for run in runs.values():
                    await self._at.store.let_go(run.batch)

    async def _claim(self) -> None:
        while not self._closed and len(self._runs) < self._running_max:
            batch = await self._at.store.claim(self._at.lease_seconds)
            if batch is None:
                return
            log.info("batch %s is worked on here (%s)", batch.id, batch.status)
            run = BatchRun(batch, self._at)
            task = asyncio.create_task(run.run(), name=batch.id)
            self._runs[task] = run
            self._at.counts.batches += 1
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._runs.pop(task)
        self._at.counts.batches -= 1
        self._due.set()
        if task.cancelled():
            return
        match task.exception():
            case None:
                log.info("batch %s is done with here", task.get_name())
            case LeaseLost():
                log.warning("batch %s is another gateway's now", task.get_name())
            case DatabaseDown() | ContentDown() as err:
                log.warning("batch %s waits: %s", task.get_name(), err)
            case err:
                # It is claimed again when its lease has run out, until its time is over.
                log.error("batch %s has failed in the gateway", task.get_name(), exc_info=err)

    async def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._swept_at is None or now - self._swept_at > SWEEP_SECONDS:
            self._swept_at = now
            await self._at.store.sweep(self._kept_seconds)
