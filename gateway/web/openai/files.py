"""Handlers of OpenAI's files API: upload, list, show, read, delete."""

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from gateway.database.file_store import MESSAGE_BATCH, StoredFile, TenantStorageFull
from gateway.database.pagination import CursorNotFound
from gateway.domain.errors import (
    BadRequest,
    FileInUse,
    FilesUnavailable,
    NotFound,
    PayloadTooLarge,
    StorageExceeded,
)
from gateway.files.tenant_files import FileLabel, FileTooLarge, TenantFiles
from gateway.web.bodies.multipart import FileUpload
from gateway.web.middleware.error_middleware import Handler
from gateway.web.stored.file_contents import send_content
from gateway.web.stored.json_handlers import AuthenticateTenant, json_handler
from gateway.web.stored.list_parameters import requested_page

PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
FILES_MAX = 10_000
"""The most files on one page."""
EXPIRES_AFTER_SECONDS = (3600, 30 * 86400)
"""Smallest and largest `expires_after`, as at OpenAI."""

Json = dict[str, Any]


class FileHandlers:
    """The HTTP handlers of OpenAI's files. A tenant has access to its own only.

    `tenant_files` is None without a database. `idle_seconds_max` is the longest silence of a client that sends or
    reads a file.
    """

    def __init__(
        self, tenant_files: TenantFiles | None, authenticate: AuthenticateTenant, *, idle_seconds_max: float
    ) -> None:
        self._maybe_tenant_files = tenant_files
        self._authenticate = authenticate
        self._idle_seconds_max = idle_seconds_max

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return the routes: method, path below the prefix, handler."""
        return [
            ("POST", "files", json_handler(self.create, FilesUnavailable)),
            ("GET", "files", json_handler(self.list_all, FilesUnavailable)),
            ("GET", "files/{file}", json_handler(self.show, FilesUnavailable)),
            ("DELETE", "files/{file}", json_handler(self.delete, FilesUnavailable)),
            ("GET", "files/{file}/content", self.content),
        ]

    @property
    def _tenant_files(self) -> TenantFiles:
        if self._maybe_tenant_files is None:
            raise NotFound("This gateway stores no files: it has no database.")
        return self._maybe_tenant_files

    async def create(self, http: web.Request) -> bytes:
        """Store an uploaded file."""
        tenant, tenant_files = await self._authenticate(http), self._tenant_files
        bounds = tenant_files.bounds
        if (http.content_length or 0) > bounds.file_bytes_max + 65536:
            raise PayloadTooLarge(bounds.file_bytes_max)
        upload = FileUpload(http, self._idle_seconds_max)
        try:
            file = await tenant_files.put(tenant.id, upload.pieces(), lambda: _label(upload))
        except FileTooLarge as err:
            raise PayloadTooLarge(err.bytes_max) from err
        except TenantStorageFull as err:
            raise StorageExceeded(bounds.tenant_bytes_max) from err
        return msgspec.json.encode(file_object(file))

    async def list_all(self, http: web.Request) -> bytes:
        """List files."""
        tenant, page = (
            await self._authenticate(http),
            requested_page(http, limit=FILES_MAX, limit_max=FILES_MAX),
        )
        try:
            found, more = await self._tenant_files.page(tenant.id, page, http.query.get("purpose"))
        except CursorNotFound as err:
            raise BadRequest(f"There is no file {(page.after or '')[:100]!r}.", param="after") from err
        return list_body([file_object(file) for file in found], more)

    async def show(self, http: web.Request) -> bytes:
        """Show a file."""
        return msgspec.json.encode(file_object(await self._found(http)))

    async def delete(self, http: web.Request) -> bytes:
        """Delete a file, unless a batch reads it."""
        file = await self._found(http)
        if await self._tenant_files.delete(file) == "in use":
            raise FileInUse
        return msgspec.json.encode({"id": file.id, "object": "file", "deleted": True})

    async def content(self, http: web.Request) -> web.StreamResponse:
        """Answer with the content of a file, as it was uploaded."""

        async def find() -> tuple[TenantFiles, StoredFile]:
            return self._tenant_files, await self._found(http)

        return await send_content(
            http,
            find,
            lambda: _not_found(http),
            content_type="application/octet-stream",
            unread_seconds_max=self._idle_seconds_max,
        )

    async def _found(self, http: web.Request) -> StoredFile:
        tenant = await self._authenticate(http)
        file = await self._tenant_files.get(tenant.id, http.match_info["file"])
        if file is None or file.purpose == MESSAGE_BATCH:
            raise _not_found(http)
        return file


def file_object(file: StoredFile) -> Json:
    """Return a file as OpenAI's API shows it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created),
        "expires_at": int(file.expires),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def list_body(objects: list[Json], more: bool) -> bytes:
    """Return a page of objects as JSON, in the shape of OpenAI's lists."""
    return msgspec.json.encode(
        {
            "object": "list",
            "data": objects,
            "first_id": objects[0]["id"] if objects else None,
            "last_id": objects[-1]["id"] if objects else None,
            "has_more": more,
        }
    )


def expires_after_seconds(anchor: object, required_anchor: str, seconds: object) -> int | None:
    """Return the seconds of `expires_after`; None if it is not set. Raises BadRequest."""
    if anchor is None and seconds is None:
        return None
    if anchor != required_anchor:
        raise BadRequest(f"expires_after.anchor must be {required_anchor}.", param="expires_after")
    least, most = EXPIRES_AFTER_SECONDS
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not least <= seconds <= most:
        raise BadRequest(f"expires_after.seconds must be between {least} and {most}.", param="expires_after")
    return seconds


def _label(upload: FileUpload) -> FileLabel:
    fields: Mapping[str, str] = upload.fields
    purpose = fields.get("purpose")
    if purpose not in PURPOSES:
        raise BadRequest(f"purpose must be one of {', '.join(PURPOSES)}.", param="purpose")
    seconds = fields.get("expires_after[seconds]")
    whole_seconds = (
        int(seconds[:12]) if seconds is not None and seconds.isdecimal() and seconds.isascii() else seconds
    )
    kept_seconds = expires_after_seconds(fields.get("expires_after[anchor]"), "created_at", whole_seconds)
    return FileLabel(purpose=purpose, name=upload.name or "", kept_seconds=kept_seconds)


def _not_found(http: web.Request) -> NotFound:
    return NotFound(f"The file {http.match_info['file'][:100]!r} does not exist.")
