"""The state that all HTTP handlers share: engine, tokenizer, identity of the process, requests in progress."""

import re
import secrets
from dataclasses import dataclass, field

from aiohttp import web

from workers.engine.async_engine import AsyncEngine
from workers.engine.execution.embedding import Embedder
from workers.engine_server.disaggregation import DisaggregationStatus
from workers.engine_server.errors import bad_request
from workers.engine_server.kv_events import KvEventPublisher
from workers.engine_server.live_requests import LiveRequests
from workers.engine_server.options import WorkerOptions
from workers.engine_server.prompt_tokenizer import PromptTokenizer
from workers.engine_server.tools.formats import CallFormat

_RID = re.compile(r"[\x21-\x7e]{1,256}")


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
