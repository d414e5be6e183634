"""Stores results of rows in the database, several in one transaction.

A result is stored once `put` has returned; while the database does not answer, `put` waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from gateway.database.batch_store import RowResult
from gateway.database.database import DatabaseDown

log = logging.getLogger(__name__)

TOGETHER_SECONDS = 0.05
AGAIN_SECONDS = 1.0

Put = tuple[RowResult, "asyncio.Future[None]"]


class ResultWriter:
    """Stores results with `add`, several at once.

    `run` has to run for as long as rows run; each `put` raises the error that `run` raises.
    """

    def __init__(self, add: Callable[[Sequence[RowResult]], Awaitable[None]]) -> None:
        self._add = add
        self._waiting: list[Put] = []
        self._some = asyncio.Event()

    async def put(self, result: RowResult) -> None:
        """Store a result, and return when it is stored."""
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((result, kept))
        self._some.set()
        await kept

    async def run(self) -> None:
        """Store results as they come, until this coroutine is cancelled. Raises LeaseLost."""
        while True:
            await self._some.wait()
            await asyncio.sleep(TOGETHER_SECONDS)
            together, self._waiting = self._waiting, []
            self._some.clear()
            await self._keep([result for result, _ in together])
            for _, kept in together:
                if not kept.done():
                    kept.set_result(None)

    async def flush(self) -> None:
        """Store the results that still wait after their rows were cancelled. Raises LeaseLost, DatabaseDown."""
        together, self._waiting = self._waiting, []
        if together:
            await self._add([result for result, _ in together])

    async def _keep(self, results: Sequence[RowResult]) -> None:
        while True:
            try:
                return await self._add(results)
            except DatabaseDown as err:
                log.warning("%d results of a batch wait: %s", len(results), err)
                await asyncio.sleep(AGAIN_SECONDS)
