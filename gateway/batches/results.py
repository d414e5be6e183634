"""Results of rows on their way into the database: those that come together are one transaction.

A row has its result when `put` has returned, and not before; while the database is away it waits.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from gateway.batches.exchange import RowExchange
from gateway.database.batch_store import RowResult
from gateway.database.database import DatabaseDown

log = logging.getLogger(__name__)

TOGETHER_SECONDS = 0.05
AGAIN_SECONDS = 1.0
LINE_BYTES_MAX = 32 * 1024 * 1024

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
TOO_LARGE = ("answer_too_large", f"The answer has more than {LINE_BYTES_MAX} bytes.")

Put = tuple[RowResult, "asyncio.Future[None]"]


class Results:
    """`add` keeps some. `run` for as long as rows run; what it raises, all who wait get."""

    def __init__(self, add: Callable[[Sequence[RowResult]], Awaitable[None]]) -> None:
        self._add = add
        self._waiting: list[Put] = []
        self._some = asyncio.Event()

    async def put(self, result: RowResult) -> None:
        """Returns when it is kept."""
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((result, kept))
        self._some.set()
        await kept

    async def run(self) -> None:
        """Raises LeaseLost."""
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
        """What still waits, when rows have been cancelled: it has been computed. Raises LeaseLost, DatabaseDown."""
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


def line_of(custom_id: str, exchange: RowExchange) -> tuple[bool, str]:
    """Whether it went well, and the line for it."""
    error = exchange.error
    if error is None and len(exchange.body) > LINE_BYTES_MAX:
        return False, without_answer(custom_id, *TOO_LARGE)
    status, body = (error.status, error.body()) if error is not None else (exchange.status, exchange.body)
    # In JSON line breaks stand between values only: a worker may have laid them out for readers.
    body = body.replace(b"\n", b" ").replace(b"\r", b" ")
    response = {"status_code": status, "request_id": exchange.id, "body": msgspec.Raw(body)}
    return error is None, _line(custom_id, response, None)


def without_answer(custom_id: str, code: str, message: str) -> str:
    """The line of a row that has no answer, and why."""
    return _line(custom_id, None, {"code": code, "message": message})


def _line(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> str:
    line = {
        "id": f"batch_req_{secrets.token_hex(16)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(line).decode("utf-8", "replace")
