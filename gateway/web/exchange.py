"""Exchange over aiohttp: one HTTP request of a client, and its answer."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress

from aiohttp import web

from gateway.errors import BodyTimeout, GatewayError, PayloadTooLarge
from gateway.request import InferenceRequest, Surface
from gateway.web import openai

SERVER = "radixgate"
STREAM_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class HttpExchange:
    """See Exchange. `response` is what the HTTP handler returns once the request has been served."""

    def __init__(
        self, http: web.Request, surface: Surface, *, body_bytes_max: int, body_seconds_max: float
    ) -> None:
        self.id = new_request_id()
        self.surface = surface
        self.response: web.StreamResponse | None = None
        self._http = http
        self._received_at = time.monotonic()
        self._body_bytes_max = body_bytes_max
        self._body_seconds_max = body_seconds_max

    @property
    def key(self) -> str | None:
        return presented_key(self._http.headers)

    @property
    def traceparent(self) -> str | None:
        return self._http.headers.get("traceparent")

    @property
    def begun(self) -> bool:
        return self.response is not None and self.response.prepared

    async def request(self) -> InferenceRequest:
        if (self._http.content_length or 0) > self._body_bytes_max:
            raise PayloadTooLarge(self._body_bytes_max)
        try:
            # Most bodies have come with their headers: nothing to wait for, and no clock to set.
            if self._http.content.is_eof():
                body = await self._http.read()
            else:
                async with asyncio.timeout(self._body_seconds_max):
                    body = await self._http.read()
        except TimeoutError:
            raise BodyTimeout(self._body_seconds_max) from None
        except web.HTTPRequestEntityTooLarge:
            raise PayloadTooLarge(self._body_bytes_max) from None
        return openai.decode(self.surface, body)

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        self.response = web.StreamResponse(status=status, headers=self._headers(headers, STREAM_HEADERS))
        self.response.content_type = content_type
        await self.response.prepare(self._http)

    async def write(self, data: bytes) -> None:
        assert self.response is not None
        await self.response.write(data)

    async def end(self) -> None:
        assert self.response is not None
        await self.response.write_eof()

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.response = web.Response(
            status=status, body=body, content_type=content_type, headers=self._headers(headers)
        )
        # Sent here and now: what is written down about the request afterwards keeps no client waiting.
        await self.response.prepare(self._http)
        await self.response.write_eof()

    async def fail(self, error: GatewayError) -> None:
        if not self.begun:
            with suppress(ConnectionResetError):
                await self.answer(error.status, "application/json", error.body(), error.headers())
            return
        assert self.response is not None
        # The stream ends here, without [DONE]. The connection stays: its headers have promised that already, and a
        # client that has read to the end may be sending its next request on it.
        with suppress(ConnectionResetError):
            await self.response.write(error.frame())
            await self.response.write_eof()

    def _headers(self, *more: Mapping[str, str]) -> dict[str, str]:
        headers = {
            "server": SERVER,
            "x-request-id": self.id,
            "openai-processing-ms": str(int((time.monotonic() - self._received_at) * 1000)),
        }
        for extra in more:
            headers.update(extra)
        return headers


def new_request_id() -> str:
    """Unique among all gateways, and ours: quotas are idempotent on it, so a client may not choose it."""
    return f"req-{secrets.token_hex(16)}"


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The API key, as a bearer token or as `x-api-key`."""
    authorization = headers.get("Authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        return key.strip() if scheme.lower() == "bearer" else None
    return headers.get("x-api-key")
