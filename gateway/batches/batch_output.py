"""BatchOutput: writes the output files of one batch, and ends the batch."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from gateway.batches.batch_input import BatchInput
from gateway.batches.batch_services import BatchServices
from gateway.batches.output_lines import output_lines_for
from gateway.database.batch_store import CANCELLED, COMPLETED, EXPIRED, FINALIZING, StoredBatch
from gateway.database.file_store import MESSAGE_BATCH, StoredFile
from gateway.files.content_store import ContentLost
from gateway.files.tenant_files import FileLabel
from gateway.telemetry.batch_trace import BatchReport

PIECE_BYTES = 256 * 1024


class BatchOutput:
    """The output files of one batch, written when all its rows have ended; `lines` formats them for its API."""

    def __init__(self, batch: StoredBatch, services: BatchServices, rows: BatchInput) -> None:
        self.lines = output_lines_for(batch.endpoint)
        self._batch = batch
        self._services = services
        self._input = rows

    async def end(self, status: str, errors: list[dict[str, Any]]) -> None:
        """Write the output files and set the last status, in one transaction."""
        store, batch = self._services.store, self._batch
        if (
            status == COMPLETED
            and batch.status != FINALIZING
            and not await store.set_status(batch, FINALIZING)
        ):
            status = CANCELLED
        now = await store.reload(batch)
        missing = now.total - now.completed - now.failed
        failed_more = missing if status == EXPIRED and not self.lines.single_file else 0
        files = await self._write_files(now, status, missing=missing, failed_more=failed_more, errors=errors)
        names = {kind: file.id for kind, file in files.items()}
        async with store.finish(batch, status, errors=errors, failed_more=failed_more, **names) as connection:
            for file in files.values():
                await self._services.tenant_files.store.complete_in(connection, file)
        self._services.on_ended(
            BatchReport(
                id=batch.id,
                tenant=batch.tenant,
                endpoint=batch.endpoint,
                status=status,
                created=batch.created,
                ended=self._services.wall(),
                rows=now.total,
                failed_rows=now.failed + failed_more,
            )
        )

    async def _write_files(
        self,
        now: StoredBatch,
        status: str,
        *,
        missing: int,
        failed_more: int,
        errors: list[dict[str, Any]],
    ) -> dict[str, StoredFile]:
        """Write the files that the batch's API has, and return them by the names of their columns."""
        store, batch = self._services.store, self._batch
        if self.lines.single_file:
            lines = self._result_lines(None, status if missing else None, errors)
            return {"output_file": await self._file("results", lines)}
        files: dict[str, StoredFile] = {}
        if now.completed:
            files["output_file"] = await self._file("output", store.result_lines(batch, good=True))
        if now.failed or failed_more:
            lines = self._result_lines(False, status if failed_more else None, errors)
            files["error_file"] = await self._file("error", lines)
        return files

    async def _file(self, kind: str, found: AsyncIterator[str]) -> StoredFile:
        label = FileLabel(
            purpose=MESSAGE_BATCH if self.lines.single_file else "batch_output",
            name=f"{self._batch.id}_{kind}.jsonl",
            kept_seconds=self._batch.output_kept_seconds,
        )
        return await self._services.tenant_files.write(self._batch.tenant, _pieces(found), label)

    async def _result_lines(
        self, good: bool | None, missing_status: str | None, errors: list[dict[str, Any]]
    ) -> AsyncIterator[str]:
        """Yield the lines of rows with such a result, then those of rows without one.

        `missing_status` is the status that the batch ended in, for rows without a result; None leaves them out.
        """
        async for line in self._services.store.result_lines(self._batch, good=good):
            yield line
        if missing_status is None:
            return
        with suppress(ContentLost):
            async for row in self._input.rows(await self._services.store.finished_rows(self._batch)):
                yield self.lines.missing_line(row.custom_id, missing_status, errors)


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
