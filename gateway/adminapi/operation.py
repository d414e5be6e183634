"""One call of the admin API: what an operation is, what it is given, and how it is answered."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from gateway.adminapi.principal import Principal
from gateway.adminapi.problems import HEADERS, Problem
from gateway.database.tenant_store import TenantStore
from gateway.settings.error_messages import explain_error
from gateway.settings.token_issuers import Role
from gateway.tenants.key_life import KeyLife

BODY_BYTES_MAX = 256 * 1024
BODY_SECONDS_MAX = 10.0
PAGE = 100
PAGE_MAX = 1000

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResponse:
    """`value`: what is shown as JSON."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] | None = None

    def response(self) -> web.Response:
        body = msgspec.json.encode(self.value, enc_hook=str)
        headers = {**HEADERS, **(self.headers or {})}
        return web.Response(status=self.status, body=body, content_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRequest:
    """`store`, `life`: what they change is told as done by `asker`."""

    http: web.Request
    asker: Principal
    store: TenantStore
    life: KeyLife

    def part(self, name: str) -> str:
        """Of the path. Raises Problem for what can be nobody's name."""
        text = self.http.match_info[name]
        if not text.isprintable():
            raise Problem(404, "There is nothing of that name.")
        return text

    def parameters(self, *names: str) -> dict[str, str]:
        """Those of the query; there may be no others, and none twice. Raises Problem."""
        found: dict[str, str] = {}
        for name, text in self.http.query.items():
            if name not in names:
                known = ", ".join(names) or "none"
                raise Problem(400, f"There is no parameter {name[:100]!r} here; there are: {known}.")
            if name in found or "\x00" in text:
                raise Problem(400, f"The parameter {name} cannot be that.")
            found[name] = text
        return found

    async def body(self, kind: type[Value], **fields: Any) -> Value:
        """The JSON that was sent, with these fields added. Raises Problem."""
        try:
            given = msgspec.json.decode(await self._read())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise Problem(400, f"The body is not JSON: {err}.") from err
        if not isinstance(given, dict):
            raise Problem(400, "The body has to be a JSON object.")
        for name, value in fields.items():
            if given.setdefault(name, value) != value:
                raise Problem(400, f"$.{name}: the address says {value!r}.")
        return self.converted(given, kind)

    @staticmethod
    def converted(given: dict[str, Any], kind: type[Value], at: str = "$") -> Value:
        """A value of that type, held against the rules that settings have. Raises Problem."""
        try:
            return msgspec.convert(given, kind, dec_hook=lambda wanted, text: wanted(text))
        except msgspec.ValidationError as err:
            raise Problem(400, f"{explain_error(str(err), kind, {}, at)}.") from err

    async def _read(self) -> bytes:
        content_type = self.http.content_type
        if content_type != "application/json":
            raise Problem(415, "The body has to be application/json.")
        if self.http.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise Problem(415, "The body has to come as it is, without Content-Encoding.")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that can be done. `path`: below /admin/v1. `takes`, `gives`: types of bodies, for the document.

    `parameters`: of the query, with what each is. `status`: where all is well.
    """

    method: str
    path: str
    role: Role
    does: str
    handle: Handle
    gives: Any
    takes: Any = None
    parameters: Mapping[str, str] | None = None
    status: int = 200
    conditional: bool = False


def page_limit(text: str | None) -> int:
    """How many entries of a page are asked for. Raises Problem."""
    if text is None:
        return PAGE
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= PAGE_MAX:
        raise Problem(400, f"limit: expected a whole number from 1 to {PAGE_MAX}.")
    return int(text)
