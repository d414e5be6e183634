"""The state that all HTTP handlers share: engine, tokenizer, identity of the process, requests in progress."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web

from workers.engine.async_engine import AsyncEngine
from workers.engine.execution.embedding import Embedder
from workers.engine_server.disaggregation import DisaggregationStatus
from workers.engine_server.errors import ApiError, bad_request
from workers.engine_server.kv_events import KvEventPublisher
from workers.engine_server.options import WorkerOptions
from workers.engine_server.prompt_tokenizer import PromptTokenizer
from workers.engine_server.tools.formats import CallFormat

_RID = re.compile(r"[\x21-\x7e]{1,256}")


class LiveRequests:
    """The requests in progress, by the names that clients give them.

    A client may send a name twice, for example when it retries before the worker noticed the lost connection. So
    the engine knows each request by a number of the worker's own, and a name stands for all of its numbers.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        """Whether new requests are refused because the worker shuts down."""

    def __len__(self) -> int:
        return len(self._names)

    @contextmanager
    def enter(self, rid: str) -> Iterator[str]:
        """Yield the engine's id of a request, which is in progress inside this context; refuse while draining."""
        if self.draining:
            raise ApiError(503, "The worker is shutting down.", code="shutting_down")
        self._count += 1
        engine_id = str(self._count)
        self._names[engine_id] = rid
        self._idle.clear()
        try:
            yield engine_id
        finally:
            del self._names[engine_id]
            if not self._names:
                self._idle.set()

    def engine_ids(self, rid: str | None) -> list[str]:
        """Return the engine's ids of the requests named `rid`, or of all requests when it is None."""
        return [engine_id for engine_id, name in self._names.items() if rid is None or name == rid]

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait at most `seconds` until those in progress have ended."""
        self.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWorker:
    """A running worker: one served model, its engine and its state."""

    options: WorkerOptions
    engine: AsyncEngine
    prompt_tokenizer: PromptTokenizer
    live_requests: LiveRequests = field(default_factory=LiveRequests)
    instance_id: str = field(default_factory=lambda: secrets.token_hex(16))
    """A random name of this process, new with every start."""
    publisher: KvEventPublisher | None = None
    """None where KV events are not published."""
    call_format: CallFormat | None = None
    """How the model writes tool calls; None if that is not known."""
    embedder: Embedder | None = None
    disaggregation: DisaggregationStatus = field(default_factory=lambda: DisaggregationStatus("null"))
    created: int
    """Unix seconds of the start."""

    @property
    def instance(self) -> str:
        """A name of the cache's content: it changes with every start and every flush, as both empty the cache."""
        return f"{self.instance_id}.{self.engine.cache_flushes}"

    @property
    def ready(self) -> bool:
        """Whether a request that comes now would be served."""
        return self.engine.failure is None and not self.live_requests.draining


WORKER: web.AppKey[EngineWorker] = web.AppKey("worker", EngineWorker)


def request_name(request: web.Request, rid: str | None) -> str:
    """Return the request's name: the body's `rid`, else the x-request-id header, else a random name.

    The name goes back in a header and in the completion's id. A malformed rid is refused. A malformed header, which
    a proxy may have written, is ignored.
    """
    if rid is not None:
        if not _RID.fullmatch(rid):
            raise bad_request("rid has 1 to 256 printable ASCII characters and no space.", param="rid")
        return rid
    header = request.headers.get("x-request-id", "")
    return header if _RID.fullmatch(header) else secrets.token_hex(16)
