"""What the handlers share: the engine, the prompts, the identity of this process, and who is being served."""

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
    """Requests being answered, by what clients call them.

    A client may send a name twice, for example when it retries before we noticed that it left. So the engine knows
    each by a number of our own, and a name stands for all of its numbers.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._count = 0
        self._nobody = asyncio.Event()
        self._nobody.set()
        self.draining = False

    def __len__(self) -> int:
        return len(self._names)

    @contextmanager
    def enter(self, rid: str) -> Iterator[str]:
        """Yields the engine's id of a request; refused while the worker shuts down."""
        if self.draining:
            raise ApiError(503, "The worker is shutting down.", code="shutting_down")
        self._count += 1
        engine_id = str(self._count)
        self._names[engine_id] = rid
        self._nobody.clear()
        try:
            yield engine_id
        finally:
            del self._names[engine_id]
            if not self._names:
                self._nobody.set()

    def ids(self, rid: str | None) -> list[str]:
        """The engine's ids of the requests named `rid`; of all when it is None."""
        return [engine_id for engine_id, name in self._names.items() if rid is None or name == rid]

    async def drain(self, seconds: float) -> None:
        """Let nobody in any more, and wait until everybody has left, but no longer than this."""
        self.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._nobody.wait(), seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWorker:
    """One served model."""

    options: WorkerOptions
    engine: AsyncEngine
    prompts: PromptTokenizer
    live: LiveRequests = field(default_factory=LiveRequests)
    instance_id: str = field(default_factory=lambda: secrets.token_hex(16))
    """New with every start."""
    publisher: KvEventPublisher | None = None
    call_format: CallFormat | None = None
    """How the model writes tool calls; None if that is not known."""
    embedder: Embedder | None = None
    half: DisaggregationStatus = field(default_factory=lambda: DisaggregationStatus("null"))
    created: int
    """Unix seconds of the start."""

    @property
    def instance(self) -> str:
        """New with every start and every flush: who sees another one knows that the cache was emptied."""
        return f"{self.instance_id}.{self.engine.cache_flushes}"

    @property
    def ready(self) -> bool:
        """Will a request that comes now be served?"""
        return self.engine.failure is None and not self.live.draining


WORKER: web.AppKey[EngineWorker] = web.AppKey("worker", EngineWorker)


def request_name(request: web.Request, rid: str | None) -> str:
    """What this request is called: the body's `rid`, else the header's, else something new.

    It goes back in a header and in the answer's id. An odd rid is refused; an odd header, which some proxy may have
    written, is not worth a refusal.
    """
    if rid is not None:
        if not _RID.fullmatch(rid):
            raise bad_request("rid has 1 to 256 printable ASCII characters and no space.", param="rid")
        return rid
    header = request.headers.get("x-request-id", "")
    return header if _RID.fullmatch(header) else secrets.token_hex(16)
