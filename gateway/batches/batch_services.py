"""BatchServices: the services for running batches, and their bounds."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.batches.row_exchange import RowExchange
from gateway.database.batch_store import BatchStore
from gateway.domain.memory_budget import MemoryBudget
from gateway.files.tenant_files import TenantFiles
from gateway.telemetry.batch_counts import BatchCounts
from gateway.telemetry.batch_trace import BatchReport
from gateway.web.dialect import Dialect

LEASE_SECONDS = 12.0
RENEW_SECONDS = 2.0
"""How often a lease is renewed, and how soon a gateway learns that a batch was cancelled on another one."""

ROWS_BYTES_MAX = 32 * 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024


class RowMemory:
    """A bound on the bytes of all batch rows in memory; a single row always has room."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._freed = asyncio.Event()

    async def hold(self, size: int) -> None:
        """Wait until there is room for so many bytes, and take it."""
        while self._held and self._held + size > self._bytes_max:
            self._freed.clear()
            await self._freed.wait()
        self._held += size

    def release(self, size: int) -> None:
        """Give back so many bytes."""
        self._held -= size
        self._freed.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchServices:
    """The services and bounds for running batches on this gateway."""

    store: BatchStore
    tenant_files: TenantFiles
    serve_row: Callable[[RowExchange], Awaitable[None]]  # sends a row through the pipeline
    dialects: Callable[[str], Callable[[str], Dialect]]  # by the batch's endpoint
    slots: asyncio.Semaphore  # one for each row that is in the pipeline
    memory: RowMemory
    requests_memory: MemoryBudget  # shared with the requests of clients
    rows_max: int  # in the input file of a batch
    batch_rows_max: int  # of one batch in memory
    line_bytes_max: int  # in an input file
    counts: BatchCounts
    on_ended: Callable[[BatchReport], None]
    wall: Callable[[], float] = time.time
    lease_seconds: float = LEASE_SECONDS
    renew_seconds: float = RENEW_SECONDS
