"""BatchInput: reads the input file of one batch, to validate it and to serve its rows."""

from collections.abc import AsyncIterator, Callable, Container
from typing import Any

from gateway.batches import input_file
from gateway.batches.batch_services import BatchServices
from gateway.batches.input_file import InputRow
from gateway.database.batch_store import StoredBatch
from gateway.files.content_store import ContentLost
from radix_cache.loop_yield import LoopYielder


class BatchInput:
    """The input file of one batch. The methods raise ContentLost if the file is gone."""

    def __init__(self, batch: StoredBatch, services: BatchServices) -> None:
        self._batch = batch
        self._services = services

    async def validate(self, stopped: Callable[[], bool]) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of rows, and the errors in them; stop half way once `stopped` returns true."""
        at, yielder = self._services, LoopYielder()
        check = input_file.InputCheck(
            self._batch.endpoint, rows_max=at.rows_max, line_bytes_max=at.line_bytes_max
        )
        async for number, line in self._lines():
            check.check_line(number, line)
            if check.over or stopped():
                break
            await yielder.yield_if_due()
        check.end()
        return check.total, check.errors

    async def rows(self, done: Container[int]) -> AsyncIterator[InputRow]:
        """Yield the rows whose numbers are not in `done`."""
        yielder = LoopYielder()
        async for number, line in self._lines():
            await yielder.yield_if_due()
            if number not in done:
                yield input_file.parse_row(number, line, self._batch.endpoint, self._services.line_bytes_max)

    async def _lines(self) -> AsyncIterator[tuple[int, bytes]]:
        file = await self._services.tenant_files.get(self._batch.tenant, self._batch.input_file)
        if file is None:
            raise ContentLost(self._batch.input_file)
        async for found in input_file.split_lines(
            self._services.tenant_files.content(file), self._services.line_bytes_max
        ):
            yield found
