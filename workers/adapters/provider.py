"""The adapter for a provider: an external OpenAI-compatible API, wrapped around the OpenAIAdapter.

    gateway   model, fields, cache_salt, trace, request id     gateway's model name
       |                                                             ^
       v      without everything that identifies the caller          |  renamed, frame by frame
    provider  its own name for the model, a random id          provider's model name

The provider gets only what the answer needs. Its answers name the model as the gateway's own workers do.
"""

import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from workers.adapter import (
    FailureKind,
    StreamBroken,
    WorkerAdapter,
    WorkerAnswer,
    WorkerCall,
    WorkerFailed,
    WorkerReport,
)

WITHHELD = frozenset(
    {
        "metadata",
        "models",
        "plugins",
        "prompt_cache_key",
        "prompt_cache_retention",
        "provider",
        "route",
        "safety_identifier",
        "service_tier",
        "store",
        "trace",
        "user",
        "web_search_options",
    }
)
"""Fields that are not passed on: they identify the caller or the purpose, make the provider store something, or
change the price, for example by another model in place of the requested one, or by searches."""

FRAME_BYTES_MAX = 1024**2
"""The longest frame in which the model is renamed; a longer one is passed on unchanged."""

BODY_BYTES_MAX = 256 * 1024**2
"""Longest answer in one piece."""

_NAMES_WORKER = (b'"model"', b'"provider"')
_FRAME_END = re.compile(rb"\r?\n\r?\n")
_DATA = re.compile(rb"^data: ?(\{.*\})", re.MULTILINE)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ProviderAdapter:
    """The WorkerAdapter of a provider.

    `names` has the provider's name of each model with a different name there.
    """

    isolates = False
    reports_running_usage = False
    streams_whole = False

    def __init__(self, inner: WorkerAdapter, names: Mapping[str, str]) -> None:
        self.request_fields = inner.request_fields
        self._inner = inner
        self._names = names

    @asynccontextmanager
    async def stream(self, call: WorkerCall) -> AsyncIterator[WorkerAnswer]:
        """Send a request without the withheld fields; the answer has the gateway's name of the model."""
        provider_name = self._names.get(call.model, call.model)
        their_call = WorkerCall(
            id=uuid.uuid4().hex,
            path=call.path,
            fields={name: value for name, value in call.fields.items() if name not in WITHHELD},
            model=provider_name,
            stream=call.stream,
            form=call.form,
            first_byte_seconds_max=call.first_byte_seconds_max,
            idle_seconds_max=call.idle_seconds_max,
            on_sent=call.on_sent,
            on_wait=call.on_wait,
        )
        async with self._inner.stream(their_call) as answer:
            if answer.status == 404:
                # The client named a model of the gateway, so it is not its error that the provider lacks the model.
                raise WorkerFailed(
                    f"/{call.path} or {provider_name!r} is unknown", failure=FailureKind.REFUSED
                )
            yield _Renamed(answer, provider_name, call.model)

    async def probe(self) -> WorkerReport:
        """Check that the provider serves; its models are in the settings.

        A provider that answers 429 is reachable, too.
        """
        try:
            return await self._inner.probe()
        except WorkerFailed as err:
            if not err.rate_limited:
                raise
            return WorkerReport()

    def abandon(self) -> None:
        """Fail all calls that wait for a first byte; see WorkerAdapter."""
        self._inner.abandon()

    def close(self) -> None:
        """Close idle connections."""
        self._inner.close()


class _Renamed(WorkerAnswer):
    """A WorkerAnswer that names the model as the gateway does."""

    def __init__(self, answer: WorkerAnswer, provider_name: str, gateway_name: str) -> None:
        self.status = answer.status
        self.content_type = answer.content_type
        self._answer = answer
        self._provider_name = provider_name
        self._gateway_name = gateway_name

    def chunks(self) -> AsyncIterator[bytes]:
        return self._frames() if self.content_type == "text/event-stream" else self._whole()

    async def _frames(self) -> AsyncIterator[bytes]:
        tail = b""
        async for chunk in self._answer.chunks():
            tail += chunk
            ends = [found.end() for found in _FRAME_END.finditer(tail)]
            cut = ends[-1] if ends else 0
            if len(tail) - cut > FRAME_BYTES_MAX:
                cut = len(tail)
            ready, tail = tail[:cut], tail[cut:]
            if ready:
                yield _DATA.sub(self._line, ready)
        if tail:
            yield _DATA.sub(self._line, tail)

    async def _whole(self) -> AsyncIterator[bytes]:
        parts, size = list[bytes](), 0
        async for chunk in self._answer.chunks():
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                raise StreamBroken("the answer is too large")
            parts.append(chunk)
        body = b"".join(parts)
        if self.status >= 400:
            yield body.replace(self._provider_name.encode(), self._gateway_name.encode())
        elif body:
            yield self._object(body)

    def _line(self, found: re.Match[bytes]) -> bytes:
        return b"data: " + self._object(found[1])

    def _object(self, text: bytes) -> bytes:
        """Return a JSON object with the model renamed; other text is returned unchanged."""
        if not any(name in text for name in _NAMES_WORKER):
            return text
        try:
            fields = _OBJECT.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return text
        fields.pop("provider", None)
        if "model" in fields:
            fields["model"] = msgspec.Raw(msgspec.json.encode(self._gateway_name))
        return msgspec.json.encode(fields)
