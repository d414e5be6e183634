"""BatchRun: runs one batch from its current status to its end.

    input file --lines--> rows without a result --slots--> row ... row --served, retried--> result --> database
                                                            ^ cancelled with the batch, its expiry, or its lease

A run ends with the final status of the batch, or with HANDED_OVER if another gateway continues it.
"""

import asyncio
from collections.abc import Container
from contextlib import suppress
from functools import partial
from typing import Any

from gateway.batches import retry_schedule
from gateway.batches.batch_input import BatchInput
from gateway.batches.batch_output import BatchOutput
from gateway.batches.batch_services import BatchServices
from gateway.batches.input_file import InputRow
from gateway.batches.output_lines import FILE_LOST, KEY_ENDED
from gateway.batches.result_writer import ResultWriter
from gateway.batches.row_exchange import RowExchange
from gateway.database.batch_store import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FAILED,
    FINALIZING,
    IN_PROGRESS,
    VALIDATING,
    RowResult,
    StoredBatch,
)
from gateway.database.database import DatabaseDown
from gateway.domain import errors
from gateway.files.content_store import ContentLost
from gateway.web.request_identity import new_request_id

HANDED_OVER = "handed_over"
"""In place of a final status: another gateway continues the batch."""

_KEY_ENDED = (errors.Unauthenticated, errors.AccountDisabled, errors.ScopeNotAllowed)

Json = dict[str, Any]


class BatchRun:
    """One run of a claimed batch: `run` it once; `hand_over` starts no more rows and lets running rows end."""

    def __init__(self, batch: StoredBatch, services: BatchServices) -> None:
        self.batch = batch
        self._services = services
        # The status that the batch is to end in, or the error that ends this run; set while rows have no result.
        self._stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._input = BatchInput(batch, services)
        self._output = BatchOutput(batch, services, self._input)
        self._errors: list[Json] = []
        self._row_slots = asyncio.Semaphore(services.batch_rows_max)
        self._results = ResultWriter(lambda results: services.store.add_results(batch, results))
        self._rows: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()  # those of the rows that are in the pipeline now
        self._check_now = asyncio.Event()
        self._handing_over = False
        self._one_at_a_time = False
        """Whether the last refusal would meet other rows too: until one is served, one row at a time is sent."""
        self._retry_lock = asyncio.Lock()
        self._paused_until = 0.0

    async def run(self) -> None:
        """Run the batch to its end.

        Raises LeaseLost, DatabaseDown, ContentDown: the gateway that claims the batch next continues it.
        """
        work, watch = asyncio.create_task(self._run_and_end()), asyncio.create_task(self._watch())
        left = self.batch.expires - self._services.wall()
        timer = asyncio.get_running_loop().call_later(max(0.0, left), self._end_as, EXPIRED)
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            for task in (work, watch):
                if task.done():
                    task.result()
        finally:
            timer.cancel()
            await _cancel(work, watch)

    def check_cancelled(self) -> None:
        """Check at once whether the batch was cancelled."""
        self._check_now.set()

    def hand_over(self) -> None:
        """Start no more rows, since this gateway stops.

        Running rows may end; another gateway runs the rest.
        """
        self._handing_over = True
        for task in self._rows - self._serving:
            task.cancel()

    def _end_as(self, status: str) -> None:
        if not self._stop.done():
            self._stop.set_result(status)

    async def _watch(self) -> None:
        """Renew the lease of the batch, and end the run when the batch was cancelled. Raises LeaseLost."""
        while True:
            with suppress(DatabaseDown):
                if await self._services.store.renew(self.batch, self._services.lease_seconds) == CANCELLING:
                    self._end_as(CANCELLED)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._services.renew_seconds):
                    await self._check_now.wait()
            self._check_now.clear()

    async def _run_and_end(self) -> None:
        try:
            ended = await self._run_rows()
        except ContentLost:
            self._errors = [_error(*FILE_LOST)]
            ended = FAILED
        if ended != HANDED_OVER:
            await self._output.end(ended, self._errors)
        else:
            await self._services.store.release(self.batch)

    async def _run_rows(self) -> str:
        """Run all rows without a result and return the status that the batch ends in. Raises ContentLost."""
        status = self.batch.status
        if status == CANCELLING:
            return CANCELLED
        if status == FINALIZING:
            return COMPLETED
        if status == VALIDATING:
            total, self._errors = await self._input.validate(self._stop.done)
            if self._errors:
                return FAILED
            if self._stop.done():
                return self._stop.result()
            if not await self._services.store.set_status(self.batch, IN_PROGRESS, total=total):
                return CANCELLED
        done = await self._services.store.finished_rows(self.batch)
        keeping = asyncio.create_task(self._results.run())
        feeding = asyncio.create_task(self._feed(done))
        try:
            await asyncio.wait((feeding, keeping, self._stop), return_when=asyncio.FIRST_COMPLETED)
            for task in (keeping, feeding):
                if task.done():
                    task.result()
            if self._stop.done():
                return self._stop.result()
            return HANDED_OVER if self._handing_over else COMPLETED
        finally:
            await _cancel(feeding, *self._rows)
            await _cancel(keeping)
            await self._results.flush()

    async def _feed(self, done: Container[int]) -> None:
        """Start a row whenever there is room for it, and wait for the last of them."""
        async for row in self._input.rows(done):
            await self._row_slots.acquire()
            await self._services.memory.hold(len(row.body))
            task = asyncio.create_task(self._complete_row(row))
            self._rows.add(task)
            task.add_done_callback(partial(self._row_ended, len(row.body)))
            if self._handing_over:
                task.cancel()
                break
        if self._rows:
            await asyncio.wait(self._rows)

    def _row_ended(self, size: int, task: "asyncio.Task[None]") -> None:
        """Give back what a row held; an error that it raised ends the run."""
        # Not in the task itself, which may be cancelled before it has begun.
        self._services.memory.release(size)
        self._rows.discard(task)
        self._serving.discard(task)
        self._row_slots.release()
        if not task.cancelled() and (err := task.exception()) is not None and not self._stop.done():
            self._stop.set_exception(err)

    async def _complete_row(self, row: InputRow) -> None:
        """Serve a row, again after refusals and failures, until its result is stored."""
        refusals_of_all = failures_of_row = 0
        while True:
            exchange = await self._serve_in_turn(row)
            error = exchange.error
            if error is None:
                break
            if isinstance(error, _KEY_ENDED):
                self._errors = [_error(error.code, KEY_ENDED)]
                self._end_as(FAILED)
                return
            whole_batch = retry_schedule.affects_whole_batch(error)
            if whole_batch:
                refusals_of_all += 1
            else:
                failures_of_row += 1
            seconds = retry_schedule.wait_seconds(error, refusals_of_all if whole_batch else failures_of_row)
            if seconds is None:
                break
            self._services.counts.retried += 1
            if whole_batch:
                self._one_at_a_time = True
                self._paused_until = asyncio.get_running_loop().time() + seconds
            else:
                await asyncio.sleep(seconds)
        good, line = self._output.lines.result_line(row.custom_id, exchange)
        await self._results.put(RowResult(row=row.number, good=good, line=line))
        self._services.counts.done += 1
        self._services.counts.failed += not good

    async def _serve_in_turn(self, row: InputRow) -> RowExchange:
        """Serve a row once; after a refusal that other rows would meet too, alone and when the pause is over."""
        if self._one_at_a_time:
            async with self._retry_lock:
                if self._one_at_a_time:  # While this row waited for the lock, no other one was served.
                    await asyncio.sleep(max(0.0, self._paused_until - asyncio.get_running_loop().time()))
                    exchange = await self._serve_row(row)
                    error = exchange.error
                    self._one_at_a_time = error is not None and retry_schedule.affects_whole_batch(error)
                    return exchange
        return await self._serve_row(row)

    async def _serve_row(self, row: InputRow) -> RowExchange:
        """Serve a row once through the pipeline, when one of the slots of all batches is free."""
        task, counts = asyncio.current_task(), self._services.counts
        assert task is not None
        async with self._services.slots:
            if self._handing_over:
                raise asyncio.CancelledError
            dialect, request_id = self._services.dialects(self.batch.endpoint), new_request_id()
            caller = (self.batch.tenant, self.batch.key_id)
            exchange = RowExchange(
                request_id,
                dialect(request_id),
                row.body,
                caller,
                self._services.requests_memory,
                self.batch.id,
            )
            counts.rows += 1
            self._serving.add(task)
            try:
                await self._services.serve_row(exchange)
            finally:
                counts.rows -= 1
                self._serving.discard(task)
        return exchange


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _error(code: str, message: str) -> Json:
    return {"code": code, "message": message, "param": None, "line": None}
