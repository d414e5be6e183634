"""BatchClaimer: claims batches that no gateway runs, and runs several at a time, up to a bound."""

import asyncio
import logging
from contextlib import suppress

from gateway.batches.batch_run import BatchRun
from gateway.batches.batch_services import BatchServices
from gateway.database.batch_store import LeaseLost
from gateway.database.database import DatabaseDown
from gateway.files.content_store import ContentDown

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
SWEEP_SECONDS = 600.0
LEAVE_SECONDS_MAX = 2.0


class BatchClaimer:
    """The batches of this gateway: `run` while the gateway serves, `drain` when it stops, then `close`."""

    def __init__(self, services: BatchServices, *, running_max: int, kept_seconds: float) -> None:
        """Prepare to claim batches.

        Args:
            services: The services for running batches.
            running_max: How many batches are run at a time.
            kept_seconds: How long batches that have ended are kept.
        """
        self._services = services
        self._running_max = running_max
        self._kept_seconds = kept_seconds
        self._runs: dict[asyncio.Task[None], BatchRun] = {}
        self._due = asyncio.Event()
        self._claiming = asyncio.Lock()
        self._closed = False
        self._swept_at: float | None = None

    def wake(self) -> None:
        """Look at once for batches to claim, and for claimed batches that were cancelled."""
        self._due.set()
        for run in self._runs.values():
            run.check_cancelled()

    async def run(self) -> None:
        """Claim and run batches, until this coroutine is cancelled."""
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
        """Begin no more rows, and let running rows end in this time."""
        self._closed = True
        for run in self._runs.values():
            run.hand_over()
        if self._runs:
            await asyncio.wait(self._runs, timeout=seconds)

    async def close(self) -> None:
        """Cancel all running rows and release all batches, so that other gateways continue them at once."""
        self._closed = True
        runs = dict(self._runs)
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        with suppress(DatabaseDown, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                for run in runs.values():
                    await self._services.store.release(run.batch)
                async with self._claiming:
                    pass  # A batch whose claim was under way is released by now.

    async def _claim(self) -> None:
        async with self._claiming:
            await self._claim_as_many_as_may_run()

    async def _claim_as_many_as_may_run(self) -> None:
        while not self._closed and len(self._runs) < self._running_max:
            batch = await self._services.store.claim(self._services.lease_seconds)
            if batch is None:
                return
            if self._closed:  # It was closed meanwhile.
                await self._services.store.release(batch)
                return
            log.info("batch %s is claimed by this gateway (%s)", batch.id, batch.status)
            run = BatchRun(batch, self._services)
            task = asyncio.create_task(run.run(), name=batch.id)
            self._runs[task] = run
            self._services.counts.batches += 1
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._runs.pop(task)
        self._services.counts.batches -= 1
        self._due.set()
        if task.cancelled():
            return
        match task.exception():
            case None:
                log.info("batch %s has ended or is released by this gateway", task.get_name())
            case LeaseLost():
                log.warning("batch %s was claimed by another gateway", task.get_name())
            case DatabaseDown() | ContentDown() as err:
                log.warning("batch %s waits until its store answers: %s", task.get_name(), err)
            case err:
                # The batch is claimed again when its lease has run out, until it expires.
                log.error(
                    "batch %s stopped because of an error in the gateway", task.get_name(), exc_info=err
                )

    async def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._swept_at is None or now - self._swept_at > SWEEP_SECONDS:
            self._swept_at = now
            await self._services.store.sweep(self._kept_seconds)
