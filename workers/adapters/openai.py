"""The adapter of kind `openai`, for every worker with the OpenAI API, and the base of the other kinds.

Usage is always requested, and later withheld from clients that did not request it. Fields that only some engines
accept are left out, since providers refuse unknown fields. `cache_salt` is one of them, so kind `openai` cannot
isolate tenants: if the engine caches prefixes, all tenants share that cache, and can detect others' prompts by
timing. For vLLM and SGLang use their own kinds, which isolate tenants.
"""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from workers.adapter import FormPart, WorkerAnswer, WorkerCall, WorkerReport, WorkerTarget
from workers.adapters import multipart
from workers.adapters.body_buffers import json_buffers
from workers.adapters.http import HttpWorker
from workers.adapters.request_fields import FIELDS

_INCLUDE_USAGE = msgspec.Raw(b'{"include_usage":true}')
_OPTIONS = msgspec.json.Decoder(dict[str, Any] | None)


ENGINES = frozenset({"sglang", "vllm"})
"""Engines that name themselves as the owners of their models; each is also a kind of worker."""

_RUNNING_USAGE = msgspec.Raw(b'{"include_usage":true,"continuous_usage_stats":true}')


class ModelEntry(msgspec.Struct):
    """One model of /v1/models; `max_model_len` and `parent` are vLLM's and SGLang's additions."""

    id: str
    max_model_len: int | None = None
    owned_by: object = None
    parent: object = None
    """The model that a LoRA adapter changes; None for other models."""


class ModelList(msgspec.Struct):
    """/v1/models."""

    data: list[ModelEntry]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(model.id for model in self.data)

    @property
    def engine(self) -> str | None:
        """The kind of worker that the models' owner shows; None for other owners."""
        return next((str(model.owned_by) for model in self.data if str(model.owned_by) in ENGINES), None)

    @property
    def context_lengths(self) -> dict[str, int]:
        """The context length by model, if its entry or its parent's has one."""
        found = {
            model.id: model.max_model_len
            for model in self.data
            if model.max_model_len is not None and model.max_model_len > 0
        }
        inherited = {name: found[parent] for name, parent in self.parents.items() if parent in found}
        return {**inherited, **found}

    @property
    def parents(self) -> dict[str, str]:
        """The parent models of LoRA adapters, by the adapter's name."""
        return {
            model.id: model.parent
            for model in self.data
            if isinstance(model.parent, str) and model.parent not in ("", model.id)
        }


def _with_usage(stream_options: msgspec.Raw, asked: msgspec.Raw) -> dict[str, object]:
    """Return a client's `stream_options` with the usage that the gateway requests.

    A client's request for usage in every chunk counts only together with `include_usage`, as at engines.
    """
    given: dict[str, object] = _OPTIONS.decode(stream_options) or {}
    if not given.get("include_usage"):
        given.pop("continuous_usage_stats", None)
    return {**given, **(_OPTIONS.decode(asked) or {})}


class OpenAIAdapter:
    """The WorkerAdapter of kind `openai`. It sends no `cache_salt`, so tenants share the engine's cache."""

    isolates = False
    request_fields = FIELDS
    reports_running_usage = False
    streams_whole = False

    def __init__(self, target: WorkerTarget) -> None:
        self.http = HttpWorker(target)

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]:
        """Send a request; see WorkerAdapter."""
        if call.form is not None:
            content_type, body = multipart.multipart_buffers(self.form(call, call.form))
            return self.http.stream(call, body, self.headers(call), content_type)
        return self.http.stream(call, json_buffers(self.body(call)), self.headers(call))

    def headers(self, call: WorkerCall) -> str:
        """Return header lines that this kind adds to a call."""
        return ""

    def body(self, call: WorkerCall) -> dict[str, object]:
        """Return the fields of the body: the client's as raw JSON, and the values that the gateway sets."""
        fields: dict[str, object] = {**call.fields, "model": call.model}
        if call.stream:
            asked = _RUNNING_USAGE if self.reports_running_usage else _INCLUDE_USAGE
            given = call.fields.get("stream_options")
            fields["stream_options"] = asked if given is None else _with_usage(given, asked)
        return fields

    def form(self, call: WorkerCall, parts: Iterable[FormPart]) -> list[FormPart]:
        """Return the parts of a form to send: the client's, and those that the gateway sets."""
        model = multipart.text_part("model", call.model)
        return [model if part.field == "model" else part for part in parts if part.field in call.fields]

    async def probe(self) -> WorkerReport:
        """Request the served models; see WorkerAdapter."""
        listed = await self.models()
        return WorkerReport(
            models=listed.names,
            parents=listed.parents,
            context_lengths=listed.context_lengths,
            engine=listed.engine,
        )

    def abandon(self) -> None:
        """Fail all calls that wait for a first byte; see WorkerAdapter."""
        self.http.abandon()

    @property
    def received(self) -> int:
        """A number that rises with bytes from the worker; see SupportsStallDetection."""
        return self.http.traffic.received

    @property
    def awaited(self) -> bool:
        """Whether any call waits for bytes from the worker; see SupportsStallDetection."""
        return self.http.traffic.awaited

    def break_off(self) -> None:
        """Fail all calls; see SupportsStallDetection."""
        self.http.break_off()

    def close(self) -> None:
        """Close idle connections."""
        self.http.close()

    async def models(self) -> ModelList:
        """Return the models that the worker serves. Raises WorkerFailed."""
        listed: ModelList = await self.http.get_json("v1/models", ModelList)
        return listed
