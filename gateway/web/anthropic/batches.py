"""Handlers of Anthropic's message batches: create, list, show, cancel, read the results, delete.

A message batch is stored and run like OpenAI's batches (gateway/batches), but its files are not visible. Its states
and counts have these meanings:

    in progress -> canceling -> ended         in_progress, finalizing -> cancelling -> any final state
    succeeded, errored                        rows with a result: an answer or an error
    canceled, expired                         rows without a result, by how the batch ended

Shapes: https://platform.claude.com/docs/en/api/messages/batches
"""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from gateway.database import batch_store
from gateway.database.batch_store import (
    CANCELLED,
    CANCELLING,
    ENDED,
    EXPIRED,
    IN_PROGRESS,
    BatchStore,
    StoredBatch,
)
from gateway.database.file_store import MESSAGE_BATCH, StoredFile, TenantStorageFull
from gateway.database.pagination import CursorNotFound, PageRequest
from gateway.domain.errors import (
    BadRequest,
    FilesUnavailable,
    GatewayError,
    NotFound,
    PayloadTooLarge,
    StorageExceeded,
    TooManyBatches,
)
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.files.tenant_files import FileLabel, FileTooLarge, TenantFiles
from gateway.web.anthropic.answer_headers import rfc3339
from gateway.web.anthropic.batch_body import ENDPOINT, LINE_OVERHEAD_BYTES_MAX, MessageBatchBody
from gateway.web.middleware.error_middleware import Handler
from gateway.web.stored.file_contents import send_content
from gateway.web.stored.json_handlers import AuthenticateTenant, json_handler
from gateway.web.stored.list_parameters import requested_limit
from gateway.web.stored.object_stores import ObjectStores

BATCHES, BATCHES_MAX = 20, 1000
"""The default and the largest number of batches on a page."""
EXPIRY_SECONDS = 86400.0
"""Time until a batch expires."""

RESULTS_SECONDS = 29 * 86400
"""How long results can be read, unless files are deleted earlier."""

REQUESTS_SECONDS = 3600.0
"""How long the file of requests is stored after the batch has ended."""

Json = dict[str, Any]


class MessageBatchHandlers:
    """The HTTP handlers of message batches. A tenant has access to its own only."""

    def __init__(
        self,
        stores: ObjectStores,
        authenticate: AuthenticateTenant,
        memory: MemoryBudget,
        *,
        idle_seconds_max: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._stores = stores
        self._authenticate = authenticate
        self._memory = memory
        self._idle_seconds_max = idle_seconds_max
        self._wall = wall

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return the routes: method, path below the prefix, handler."""
        one = "messages/batches/{batch}"
        return [
            ("POST", "messages/batches", json_handler(self.create, FilesUnavailable)),
            ("GET", "messages/batches", json_handler(self.list_all, FilesUnavailable)),
            ("GET", one, json_handler(self.show, FilesUnavailable)),
            ("DELETE", one, json_handler(self.delete, FilesUnavailable)),
            ("POST", f"{one}/cancel", json_handler(self.cancel, FilesUnavailable)),
            ("GET", f"{one}/results", self.results),
        ]

    @property
    def _store(self) -> BatchStore:
        if self._stores.batches is None:
            raise NotFound("This gateway stores no batches: it has no database.")
        return self._stores.batches

    @property
    def _tenant_files(self) -> TenantFiles:
        assert self._stores.tenant_files is not None
        return self._stores.tenant_files

    async def create(self, http: web.Request) -> bytes:
        """Create a batch, after its requests have been stored."""
        tenant, store = await self._authenticate(http), self._store
        bounds = self._tenant_files.bounds
        if (http.content_length or 0) > bounds.file_bytes_max:
            raise PayloadTooLarge(bounds.file_bytes_max)
        identity = f"msgbatch_{secrets.token_hex(16)}"
        label = FileLabel(purpose=MESSAGE_BATCH, name=f"{identity}.jsonl", kept_seconds=REQUESTS_SECONDS)
        memory = MemoryLease(self._memory)
        batch_body = MessageBatchBody(
            http,
            memory,
            idle_seconds_max=self._idle_seconds_max,
            rows_max=self._stores.rows_max,
            row_bytes_max=self._stores.row_bytes_max - LINE_OVERHEAD_BYTES_MAX,
        )
        try:
            file = await self._tenant_files.put(tenant.id, batch_body.lines(), lambda: label)
        except FileTooLarge as err:
            raise PayloadTooLarge(err.bytes_max) from err
        except TenantStorageFull as err:
            raise StorageExceeded(bounds.tenant_bytes_max) from err
        finally:
            memory.release()
        now = self._wall()
        batch = StoredBatch(
            id=identity,
            tenant=tenant.id,
            key_id=tenant.key_id,
            status=IN_PROGRESS,
            endpoint=ENDPOINT,
            window="24h",
            input_file=file.id,
            created=now,
            expires=now + EXPIRY_SECONDS,
            moments={IN_PROGRESS: int(now)},
            output_kept_seconds=int(min(RESULTS_SECONDS, bounds.kept_seconds_max)),
            total=batch_body.rows,
        )
        try:
            await store.create(batch, unfinished_max=self._stores.unfinished_max)
        except batch_store.TenantBatchLimitReached as err:
            await self._tenant_files.delete(file)
            raise TooManyBatches(self._stores.unfinished_max) from err
        self._stores.wake()
        return self._encoded(batch)

    async def list_all(self, http: web.Request) -> bytes:
        """List batches, newest first, after or before a given batch."""
        tenant, limit = (
            await self._authenticate(http),
            requested_limit(http, limit=BATCHES, limit_max=BATCHES_MAX),
        )
        after, before = http.query.get("after_id"), http.query.get("before_id")
        if after is not None and before is not None:
            raise BadRequest("Only one of after_id and before_id can be given.", param="before_id")
        backwards = before is not None
        page = PageRequest(limit=limit, after=before if backwards else after, newest_first=not backwards)
        try:
            found, more = await self._store.page(tenant.id, page, (ENDPOINT,))
        except CursorNotFound as err:
            param = "before_id" if backwards else "after_id"
            raise BadRequest(f"There is no batch {(page.after or '')[:100]!r}.", param=param) from err
        objects = [
            message_batch_object(batch, self._wall()) for batch in (found[::-1] if backwards else found)
        ]
        ids = [entry["id"] for entry in objects]
        return msgspec.json.encode(
            {
                "data": objects,
                "has_more": more,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
        )

    async def show(self, http: web.Request) -> bytes:
        """Show a batch."""
        return self._encoded(await self._found(http))

    async def cancel(self, http: web.Request) -> bytes:
        """Cancel a batch: waiting requests are no longer sent, running ones are aborted at their workers."""
        while True:
            batch = await self._found(http)
            if _ended_at(batch) is not None:
                raise BadRequest("A batch that has ended cannot be canceled.")
            if batch.status != IN_PROGRESS:
                # The batch is canceling, or all its requests have results and only its file is still being written.
                return self._encoded(batch)
            if await self._store.cancel(batch):
                self._stores.wake()

    async def delete(self, http: web.Request) -> bytes:
        """Delete a batch that has ended."""
        batch = await self._found(http)
        if not await self._store.delete(batch):
            raise BadRequest("A batch can be deleted only when it has ended; cancel it first.")
        return msgspec.json.encode({"id": batch.id, "type": "message_batch_deleted"})

    async def results(self, http: web.Request) -> web.StreamResponse:
        """Answer with a line for each request, in any order."""

        async def find() -> tuple[TenantFiles, StoredFile]:
            batch = await self._found(http)
            found = batch.output_file and await self._tenant_files.get(batch.tenant, batch.output_file)
            if not found:
                raise no_results()
            return self._tenant_files, found

        def no_results() -> GatewayError:
            identity = http.match_info["batch"][:100]
            return NotFound(
                f"The batch {identity!r} has no results: the batch has not ended, or its results have expired."
            )

        return await send_content(
            http,
            find,
            no_results,
            content_type="application/x-jsonl",
            unread_seconds_max=self._idle_seconds_max,
        )

    def _encoded(self, batch: StoredBatch) -> bytes:
        return msgspec.json.encode(message_batch_object(batch, self._wall()))

    async def _found(self, http: web.Request) -> StoredBatch:
        tenant, identity = await self._authenticate(http), http.match_info["batch"]
        batch = await self._store.get(tenant.id, identity)
        if batch is None or batch.endpoint != ENDPOINT:
            raise NotFound(f"The batch {identity[:100]!r} does not exist.")
        return batch


def message_batch_object(batch: StoredBatch, now: float) -> Json:
    """Return a batch as Anthropic's API shows it. All counts change at once, when the batch has ended."""
    ended = _ended_at(batch)
    archived = ended + batch.output_kept_seconds if ended is not None and batch.output_kept_seconds else None
    if archived is not None and archived > now:
        archived = None
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if ended is None:
        counts["processing"] = batch.total
    else:
        counts["succeeded"], counts["errored"] = batch.completed, batch.failed
        # A batch that failed as a whole has an error for each row without a result.
        rest = {CANCELLED: "canceled", EXPIRED: "expired"}.get(batch.status, "errored")
        counts[rest] += batch.total - batch.completed - batch.failed
    canceling = max(batch.created, batch.moments[CANCELLING]) if CANCELLING in batch.moments else None
    has_results = batch.output_file is not None and archived is None
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": (
            "ended" if ended is not None else "canceling" if batch.status == CANCELLING else "in_progress"
        ),
        "request_counts": counts,
        "created_at": _rfc3339(batch.created),
        "expires_at": _rfc3339(batch.expires),
        "ended_at": _rfc3339(ended),
        "archived_at": _rfc3339(archived),
        "cancel_initiated_at": _rfc3339(canceling),
        # A path, which SDKs join with their base URL: the host name that clients use is unknown here.
        "results_url": f"/v1/messages/batches/{batch.id}/results" if has_results else None,
    }


def _ended_at(batch: StoredBatch) -> float | None:
    # Stored times are whole seconds, so that a batch might seem to end before it was created.
    return max(batch.created, batch.moments[batch.status]) if batch.status in ENDED else None


def _rfc3339(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(datetime.fromtimestamp(seconds, UTC))
