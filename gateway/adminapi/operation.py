"""Operations of the admin API: their description, the request that one is given, and its response."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from gateway.adminapi.principal import Principal
from gateway.adminapi.problems import HEADERS, Problem
from gateway.database.tenant_store import TenantStore
from gateway.domain.request_headers import IDENTITY, content_encoding
from gateway.settings.error_messages import explain_error
from gateway.settings.token_issuers import Role
from gateway.tenants.key_lifecycle import KeyLifecycle

BODY_BYTES_MAX = 256 * 1024
BODY_SECONDS_MAX = 10.0

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResponse:
    """The response of an operation."""

    value: Any
    """The body, which is sent as JSON."""
    status: int = 200
    headers: Mapping[str, str] | None = None

    def response(self) -> web.Response:
        """Return the HTTP response."""
        body = msgspec.json.encode(self.value, enc_hook=str)
        headers = {**HEADERS, **(self.headers or {})}
        return web.Response(status=self.status, body=body, content_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRequest:
    """A request for an operation, from an authorized principal.

    The audit log records the changes made through `store` and `key_lifecycle` as the principal's.
    """

    http: web.Request
    principal: Principal
    store: TenantStore
    key_lifecycle: KeyLifecycle

    def path_parameter(self, name: str) -> str:
        """Return a parameter of the path. Raises Problem for unprintable characters."""
        text = self.http.match_info[name]
        if not text.isprintable():
            raise Problem(404, "There is no object of that name.")
        return text

    def query_parameters(self, *names: str) -> dict[str, str]:
        """Return the query parameters. Raises Problem for other names than these, and for repeated ones."""
        found: dict[str, str] = {}
        for name, text in self.http.query.items():
            if name not in names:
                known = ", ".join(names) or "none"
                raise Problem(400, f"Unknown query parameter {name[:100]!r}; known here: {known}.")
            if name in found or "\x00" in text:
                raise Problem(400, f"The query parameter {name} is repeated, or contains a NUL character.")
            found[name] = text
        return found

    async def body(self, kind: type[Value], **fields: Any) -> Value:
        """Return the JSON body as a value of the given type. Raises Problem.

        `fields` are values that the path determines: they are added to the body, which may not contradict them.
        """
        try:
            given = msgspec.json.decode(await self._read())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise Problem(400, f"The body is not JSON: {err}.") from err
        if not isinstance(given, dict):
            raise Problem(400, "The body has to be a JSON object.")
        for name, value in fields.items():
            if given.setdefault(name, value) != value:
                raise Problem(400, f"$.{name}: the path says {value!r}.")
        return self.convert(given, kind)

    @staticmethod
    def convert(given: dict[str, Any], kind: type[Value], at: str = "$") -> Value:
        """Return a value of the given type, validated as settings are. Raises Problem.

        `at` is the path of the value in the body.
        """
        try:
            return msgspec.convert(given, kind, dec_hook=lambda wanted, text: wanted(text))
        except msgspec.ValidationError as err:
            raise Problem(400, f"{explain_error(str(err), kind, {}, at)}.") from err

    async def _read(self) -> bytes:
        content_type = self.http.content_type
        if content_type != "application/json":
            raise Problem(415, "The body has to be application/json.")
        if content_encoding(self.http.headers) != IDENTITY:
            raise Problem(415, "The body has to be sent without Content-Encoding.")
        read = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                while chunk := await self.http.content.readany():
                    read += chunk
                    if len(read) > BODY_BYTES_MAX:
                        raise Problem(413, f"The body is larger than {BODY_BYTES_MAX} bytes.")
        except TimeoutError:
            raise Problem(408, f"The body did not arrive within {BODY_SECONDS_MAX:g} seconds.") from None
        return bytes(read)


Handle = Callable[[OperationRequest], Awaitable[OperationResponse]]
"""Perform an operation. Raises Problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of the admin API: its HTTP method and path, its role, its handler, its documentation."""

    method: str
    path: str
    """The path below /admin/v1."""
    role: Role
    summary: str
    handle: Handle
    response_type: Any
    """Type of the response's body, for the OpenAPI document."""
    request_type: Any = None
    """Type of the request's body, for the OpenAPI document; None without a body."""
    query_parameters: Mapping[str, str] | None = None
    """Query parameters, with the description of each."""
    status: int = 200
    """Status of a successful response."""
    conditional: bool = False
    """Whether the headers If-Match and If-None-Match are supported."""
