"""One batch, from where it is to its end.

    file --lines--> not done yet --room--> row ... row --asked, again if it must--> result --together--> database
                                            ^ cancelled when the batch is, when its time is over, when it is lost

What ends it is known by a name: the status that it ends in, or LEFT where another gateway goes on.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

from gateway.batches import input_rows, retry_schedule
from gateway.batches.input_rows import Row
from gateway.batches.output_lines import FILE_LOST, KEY_ENDED, lines_of
from gateway.batches.result_writer import Results
from gateway.batches.row_exchange import RowExchange
from gateway.batches.services import BatchParts
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
from gateway.database.file_store import MESSAGE_BATCH, StoredFile
from gateway.domain import errors
from gateway.files.content import ContentLost
from gateway.files.tenant_files import Label
from gateway.web.request_identity import new_request_id
from radix_cache.loop_yield import LoopYielder

LEFT = "left"
PIECE_BYTES = 256 * 1024

_KEY_ENDED = (errors.Unauthenticated, errors.AccountDisabled, errors.ScopeNotAllowed)

Json = dict[str, Any]


class BatchRun:
    """`run` it once; `leave` lets what is being asked end, and begins no more."""

    def __init__(self, batch: StoredBatch, at: BatchParts) -> None:
        self.batch = batch
        self._at = at
        self._stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lines_of = lines_of(batch.endpoint)
        self._errors: list[Json] = []
        self._room = asyncio.Semaphore(at.batch_rows_max)
        self._results = Results(lambda results: at.store.add(batch, results))
        self._rows: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()
        self._leaving = False
        self._careful = False
        self._one_by_one = asyncio.Lock()
        self._paused_until = 0.0

    async def run(self) -> None:
        """To its end. Raises LeaseLost, DatabaseDown, ContentDown: whoever claims it next goes on."""
        work, watch = asyncio.create_task(self._go()), asyncio.create_task(self._watch())
        left = self.batch.expires - self._at.wall()
        timer = asyncio.get_running_loop().call_later(max(0.0, left), self._end_as, EXPIRED)
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            for task in (work, watch):
                if task.done():
                    task.result()
        finally:
            timer.cancel()
            await _cancelled(work, watch)

    def look(self) -> None:
        """It may have been cancelled."""
        self._look.set()

    def leave(self) -> None:
        """This gateway stops: what is being asked may end, what waits is another gateway's."""
        self._leaving = True
        for task in self._rows - self._asking:
            task.cancel()

    def _end_as(self, status: str) -> None:
        if not self._stop.done():
            self._stop.set_result(status)

    async def _watch(self) -> None:
        """Keeps the batch this gateway's, and sees when somebody cancels it. Raises LeaseLost."""
        while True:
            with suppress(DatabaseDown):
                if await self._at.store.renew(self.batch, self._at.lease_seconds) == CANCELLING:
                    self._end_as(CANCELLED)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._at.renew_seconds):
                    await self._look.wait()
            self._look.clear()

    async def _go(self) -> None:
        try:
            ended = await self._worked_off()
        except ContentLost:
            self._errors = [_error(*FILE_LOST)]
            ended = FAILED
        if ended != LEFT:
            await self._end(ended)
        else:
            await self._at.store.let_go(self.batch)

    async def _worked_off(self) -> str:
        """How it ends. Raises ContentLost."""
        status = self.batch.status
        if status == CANCELLING:
            return CANCELLED
        if status == FINALIZING:
            return COMPLETED
        if status == VALIDATING:
            total = await self._validated()
            if self._errors:
                return FAILED
            if self._stop.done():
                return self._stop.result()
            if not await self._at.store.move(self.batch, IN_PROGRESS, total=total):
                return CANCELLED
        done = await self._at.store.done(self.batch)
        keeping = asyncio.create_task(self._results.run())
        feeding = asyncio.create_task(self._feed(done))
        try:
            await asyncio.wait((feeding, keeping, self._stop), return_when=asyncio.FIRST_COMPLETED)
            for task in (keeping, feeding):
                if task.done():
                    task.result()
            if self._stop.done():
                return self._stop.result()
            return LEFT if self._leaving else COMPLETED
        finally:
            await _cancelled(feeding, *self._rows)
            await _cancelled(keeping)
            await self._results.flush()

    async def _validated(self) -> int:
        """How many requests the file has; `errors` are what is wrong with it. Raises ContentLost."""
        at, turns = self._at, LoopYielder()
        check = input_rows.Check(self.batch.endpoint, rows_max=at.rows_max, line_bytes_max=at.line_bytes_max)
        async for number, line in self._lines():
            check.see(number, line)
            if check.over or self._stop.done():
                break
            await turns.give()
        check.end()
        self._errors = check.errors
        return check.total

    async def _lines(self) -> AsyncIterator[tuple[int, bytes]]:
        file = await self._at.tenant_files.get(self.batch.tenant, self.batch.input_file)
        if file is None:
            raise ContentLost(self.batch.input_file)
        async for found in input_rows.lines(self._at.tenant_files.content(file), self._at.line_bytes_max):
            yield found

    async def _remaining(self, done: Any) -> AsyncIterator[Row]:
        turns = LoopYielder()
        async for number, line in self._lines():
            await turns.give()
            if number not in done:
                yield input_rows.row(number, line, self.batch.endpoint, self._at.line_bytes_max)

    async def _feed(self, done: Any) -> None:
        """Begins rows as there is room, and waits for the last of them."""
        async for row in self._remaining(done):
            await self._room.acquire()
            await self._at.memory.hold(len(row.body))
            task = asyncio.create_task(self._answered(row))
            self._rows.add(task)
            task.add_done_callback(partial(self._row_ended, len(row.body)))
            if self._leaving:
                task.cancel()
                break
        if self._rows:
            await asyncio.wait(self._rows)

    def _row_ended(self, size: int, task: "asyncio.Task[None]") -> None:
        # Here and not in the task, which may be cancelled before it has begun.
        self._at.memory.release(size)
        self._rows.discard(task)
        self._asking.discard(task)
        self._room.release()
        if not task.cancelled() and (err := task.exception()) is not None and not self._stop.done():
            self._stop.set_exception(err)

    async def _answered(self, row: Row) -> None:
        """A row, until it has its result and that is kept."""
        failures = {True: 0, False: 0}  # by whether others would be refused too
        while True:
            exchange = await self._asked(row)
            error = exchange.error
            if error is None:
                break
            if isinstance(error, _KEY_ENDED):
                self._errors = [_error(error.code, KEY_ENDED)]
                self._end_as(FAILED)
                return
            for_all = retry_schedule.refused_for_all(error)
            failures[for_all] += 1
            seconds = retry_schedule.wait_seconds(error, failures[for_all])
            if seconds is None:
                break
            self._at.counts.retried += 1
            if for_all:
                self._careful = True
                self._paused_until = asyncio.get_running_loop().time() + seconds
            else:
                await asyncio.sleep(seconds)
        good, line = self._lines_of.answered(row.custom_id, exchange)
        await self._results.put(RowResult(row=row.number, good=good, line=line))
        self._at.counts.done += 1
        self._at.counts.failed += not good

    async def _asked(self, row: Row) -> RowExchange:
        """Once. After a refusal that would meet all, one row tries alone until it is not refused."""
        while self._careful:
            async with self._one_by_one:
                if not self._careful:
                    break
                await asyncio.sleep(max(0.0, self._paused_until - asyncio.get_running_loop().time()))
                exchange = await self._through_the_pipeline(row)
                self._careful = exchange.error is not None and retry_schedule.refused_for_all(exchange.error)
                return exchange
        return await self._through_the_pipeline(row)

    async def _through_the_pipeline(self, row: Row) -> RowExchange:
        task, counts = asyncio.current_task(), self._at.counts
        assert task is not None
        async with self._at.slots:
            if self._leaving:
                raise asyncio.CancelledError
            dialect, request_id = self._at.dialects(self.batch.endpoint), new_request_id()
            caller = (self.batch.tenant, self.batch.key_id)
            exchange = RowExchange(request_id, dialect(request_id), row.body, caller)
            counts.rows += 1
            self._asking.add(task)
            try:
                await self._at.ask(exchange)
            finally:
                counts.rows -= 1
                self._asking.discard(task)
        return exchange

    async def _end(self, status: str) -> None:
        """Its files, and its last status, at once."""
        store, batch = self._at.store, self.batch
        if status == COMPLETED and batch.status != FINALIZING and not await store.move(batch, FINALIZING):
            status = CANCELLED
        now = await store.current(batch)
        missing = now.total - now.completed - now.failed
        failed_more = 0
        files: dict[str, StoredFile] = {}
        if self._lines_of.together:
            files["output_file"] = await self._file("results", self._said(None, status if missing else None))
        else:
            failed_more = missing if status == EXPIRED else 0
            if now.completed:
                files["output_file"] = await self._file("output", store.lines(batch, good=True))
            if now.failed or failed_more:
                files["error_file"] = await self._file(
                    "error", self._said(False, status if failed_more else None)
                )
        names = {kind: file.id for kind, file in files.items()}
        async with store.ending(
            batch, status, errors=self._errors, failed_more=failed_more, **names
        ) as connection:
            for file in files.values():
                await self._at.tenant_files.store.keep_in(connection, file)

    async def _file(self, kind: str, found: AsyncIterator[str]) -> StoredFile:
        label = Label(
            purpose=MESSAGE_BATCH if self._lines_of.together else "batch_output",
            name=f"{self.batch.id}_{kind}.jsonl",
            kept_seconds=self.batch.output_kept_seconds,
        )
        return await self._at.tenant_files.write(self.batch.tenant, _pieces(found), label)

    async def _said(self, good: bool | None, rest: str | None) -> AsyncIterator[str]:
        """Of rows that have such a result; then of those that have none, if they are told `rest`: how it ended."""
        async for line in self._at.store.lines(self.batch, good=good):
            yield line
        if rest is None:
            return
        with suppress(ContentLost):
            async for row in self._remaining(await self._at.store.done(self.batch)):
                yield self._lines_of.unanswered(row.custom_id, rest, self._errors)


async def _pieces(found: AsyncIterator[str]) -> AsyncIterator[bytes]:
    held, size = [], 0
    async for line in found:
        held.append(line.encode() + b"\n")
        size += len(held[-1])
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


async def _cancelled(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _error(code: str, message: str) -> Json:
    return {"code": code, "message": message, "param": None, "line": None}
