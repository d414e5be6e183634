"""Handlers of OpenAI's batches API: create, list, show, cancel. gateway/batches runs the batches."""

import re
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from aiohttp import web

from gateway.database import batch_store
from gateway.database.batch_store import CANCELLING, VALIDATING, BatchStore, StoredBatch
from gateway.database.pagination import CursorNotFound
from gateway.domain.errors import BadRequest, FilesUnavailable, NotFound, TooManyBatches
from gateway.domain.request import Surface
from gateway.web.bodies.small_body import read_small_body
from gateway.web.bodies.typed_bodies import decode_typed_body
from gateway.web.middleware.error_middleware import Handler
from gateway.web.openai.files import expires_after_seconds, list_body
from gateway.web.stored.json_handlers import AuthenticateTenant, json_handler
from gateway.web.stored.list_parameters import requested_page
from gateway.web.stored.object_stores import ObjectStores

BODY_BYTES_MAX = 64 * 1024
BATCHES, BATCHES_MAX = 20, 100
"""The default and the largest number of batches on a page."""
SURFACES = {
    f"/v1/{surface.value}": surface
    for surface in (Surface.CHAT, Surface.COMPLETIONS, Surface.EMBEDDINGS, Surface.RESPONSES)
}
"""The APIs that a batch may call, by `endpoint`."""

_WINDOW = re.compile(r"([1-9]\d{0,3})(m|h|d)")
_WINDOW_SECONDS = {"m": 60, "h": 3600, "d": 86400}
WINDOW_SECONDS_MAX = 7 * 86400
TIMESTAMPS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
"""The states for which a batch object has a time, `<state>_at`."""

Json = dict[str, Any]


class ExpiresAfter(msgspec.Struct, frozen=True):
    """The `output_expires_after` of a batch."""

    anchor: str | None = None
    seconds: int | None = None


class CreateBatch(msgspec.Struct, frozen=True):
    """The body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: (
        Annotated[
            dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
            msgspec.Meta(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


_CREATE = msgspec.json.Decoder(CreateBatch)


class BatchHandlers:
    """The HTTP handlers of OpenAI's batches. A tenant has access to its own only."""

    def __init__(
        self,
        stores: ObjectStores,
        authenticate: AuthenticateTenant,
        *,
        body_seconds_max: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._stores = stores
        self._authenticate = authenticate
        self._body_seconds_max = body_seconds_max
        self._wall = wall

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return the routes: method, path below the prefix, handler."""
        return [
            ("POST", "batches", json_handler(self.create, FilesUnavailable)),
            ("GET", "batches", json_handler(self.list_all, FilesUnavailable)),
            ("GET", "batches/{batch}", json_handler(self.show, FilesUnavailable)),
            ("POST", "batches/{batch}/cancel", json_handler(self.cancel, FilesUnavailable)),
        ]

    @property
    def _store(self) -> BatchStore:
        if self._stores.batches is None:
            raise NotFound("This gateway stores no batches: it has no database.")
        return self._stores.batches

    async def create(self, http: web.Request) -> bytes:
        """Create a batch of the requests in an uploaded file."""
        tenant, store = await self._authenticate(http), self._store
        body, _ = decode_typed_body(
            await read_small_body(http, BODY_BYTES_MAX, self._body_seconds_max), _CREATE
        )
        if body.endpoint not in SURFACES:
            raise BadRequest(f"endpoint must be one of {', '.join(SURFACES)}.", param="endpoint")
        seconds = _window_seconds(body.completion_window)
        after = body.output_expires_after or ExpiresAfter()
        kept_seconds = expires_after_seconds(after.anchor, "created_at", after.seconds)
        assert self._stores.tenant_files is not None
        file = await self._stores.tenant_files.get(tenant.id, body.input_file_id)
        if file is None or file.purpose != "batch":
            reason = "does not exist" if file is None else "was not uploaded with purpose `batch`"
            raise BadRequest(f"The file {body.input_file_id[:100]!r} {reason}.", param="input_file_id")
        now = self._wall()
        batch = StoredBatch(
            id=f"batch_{secrets.token_hex(16)}",
            tenant=tenant.id,
            key_id=tenant.key_id,
            status=VALIDATING,
            endpoint=body.endpoint,
            window=body.completion_window,
            input_file=file.id,
            created=now,
            expires=now + seconds,
            moments={},
            output_kept_seconds=kept_seconds,
            metadata=body.metadata,
        )
        try:
            await store.create(batch, unfinished_max=self._stores.unfinished_max)
        except batch_store.TenantBatchLimitReached as err:
            raise TooManyBatches(self._stores.unfinished_max) from err
        self._stores.wake()
        return msgspec.json.encode(batch_object(batch))

    async def list_all(self, http: web.Request) -> bytes:
        """List batches."""
        tenant, page = (
            await self._authenticate(http),
            requested_page(http, limit=BATCHES, limit_max=BATCHES_MAX),
        )
        try:
            found, more = await self._store.page(tenant.id, page, SURFACES)
        except CursorNotFound as err:
            raise BadRequest(f"There is no batch {(page.after or '')[:100]!r}.", param="after") from err
        return list_body([batch_object(batch) for batch in found], more)

    async def show(self, http: web.Request) -> bytes:
        """Show a batch."""
        return msgspec.json.encode(batch_object(await self._found(http)))

    async def cancel(self, http: web.Request) -> bytes:
        """Cancel a batch: waiting requests are no longer sent, running ones are aborted at their workers."""
        while True:
            batch = await self._found(http)
            if batch.status == CANCELLING:
                return msgspec.json.encode(batch_object(batch))
            if batch.status not in (VALIDATING, batch_store.IN_PROGRESS):
                raise BadRequest(f"A batch that is {batch.status} cannot be cancelled.", param="batch_id")
            if await self._store.cancel(batch):
                self._stores.wake()

    async def _found(self, http: web.Request) -> StoredBatch:
        tenant, identity = await self._authenticate(http), http.match_info["batch"]
        batch = await self._store.get(tenant.id, identity)
        if batch is None or batch.endpoint not in SURFACES:
            raise NotFound(f"The batch {identity[:100]!r} does not exist.")
        return batch


def batch_object(batch: StoredBatch) -> Json:
    """Return a batch as OpenAI's API shows it."""
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.window,
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": int(batch.created),
        "expires_at": int(batch.expires),
        **{f"{name}_at": batch.moments.get(name) for name in TIMESTAMPS},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata,
    }


def _window_seconds(window: str) -> int:
    """Return the seconds of a `completion_window`. Raises BadRequest."""
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _WINDOW_SECONDS[found[2]] if found is not None else 0
    if not 0 < seconds <= WINDOW_SECONDS_MAX:
        raise BadRequest(
            "completion_window must be `24h`, or another time up to 7 days, such as `90m` or `2d`.",
            param="completion_window",
        )
    return seconds
