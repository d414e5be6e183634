"""What it takes to run batches, and what bounds it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.batches.row_exchange import RowExchange
from gateway.database.batch_store import BatchStore
from gateway.files.tenant_files import TenantFiles
from gateway.telemetry.batch_counts import BatchCounts
from gateway.web.dialect import Dialect

LEASE_SECONDS = 12.0
RENEW_SECONDS = 2.0
"""How soon a gateway also learns that a batch was cancelled elsewhere."""

ROWS_BYTES_MAX = 256 * 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024


class Memory:
    """Bytes of rows that are in memory, of all batches here. One row alone always has room."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._freed = asyncio.Event()

    async def hold(self, size: int) -> None:
        """Waits until there is room for so many."""
        while self._held and self._held + size > self._bytes_max:
            self._freed.clear()
            await self._freed.wait()
        self._held += size

    def release(self, size: int) -> None:
        self._held -= size
        self._freed.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchParts:
    """`ask`: a row through the pipeline. `dialects`: by a batch's endpoint. `slots`: of rows that are being asked
    here. `batch_rows_max`: rows of one batch that are in memory.
    """

    store: BatchStore
    tenant_files: TenantFiles
    ask: Callable[[RowExchange], Awaitable[None]]
    dialects: Callable[[str], Callable[[str], Dialect]]
    slots: asyncio.Semaphore
    memory: Memory
    rows_max: int
    batch_rows_max: int
    line_bytes_max: int
    counts: BatchCounts
    wall: Callable[[], float] = time.time
    lease_seconds: float = LEASE_SECONDS
    renew_seconds: float = RENEW_SECONDS
