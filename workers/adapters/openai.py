"""Adapter for anything that speaks the OpenAI API, and the parts that the other kinds share with it.

Usage is always asked for, and withheld later from a client that did not ask. Fields that only some engines know are
left out: providers refuse what they do not know. `cache_salt` is one of them, so kind `openai` cannot keep tenants
apart: if the engine caches prefixes, all tenants share that cache and can time what others have asked. Where the
engine is vLLM or SGLang, its own kind isolates.
"""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

import msgspec

from workers.adapter import Part, WorkerAnswer, WorkerCall, WorkerReport, WorkerTarget
from workers.adapters import multipart
from workers.adapters.body_buffers import written
from workers.adapters.http import HttpWorker

_INCLUDE_USAGE = msgspec.Raw(b'{"include_usage":true}')


class ModelEntry(msgspec.Struct):
    """One model of /v1/models; `max_model_len` is vLLM's and SGLang's addition."""

    id: str
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    """/v1/models."""

    data: list[ModelEntry]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(model.id for model in self.data)

    @property
    def contexts(self) -> dict[str, int]:
        """Longest prompt and answer together, of those of which it is told."""
        return {
            model.id: model.max_model_len
            for model in self.data
            if model.max_model_len is not None and model.max_model_len > 0
        }


class OpenAIAdapter:
    """See WorkerAdapter. Sends no `cache_salt`: tenants share the engine's cache."""

    isolates = False
    streams_whole = False

    def __init__(self, target: WorkerTarget) -> None:
        self.http = HttpWorker(target)

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]:
        if call.form is not None:
            content_type, body = multipart.written(self.form(call, call.form))
            return self.http.stream(call, body, self.headers(call), content_type)
        return self.http.stream(call, written(self.body(call)), self.headers(call))

    def headers(self, call: WorkerCall) -> str:
        """Header lines of its own that a call goes with."""
        return ""

    def body(self, call: WorkerCall) -> dict[str, msgspec.Raw]:
        """The client's fields, and those that the gateway owns."""
        fields = {**call.fields, "model": raw(call.model)}
        if call.stream:
            fields["stream_options"] = _INCLUDE_USAGE
        return fields

    def form(self, call: WorkerCall, parts: Iterable[Part]) -> list[Part]:
        """The same of a form."""
        model = multipart.text("model", call.model)
        return [model if part.field == "model" else part for part in parts if part.field in call.fields]

    async def probe(self) -> WorkerReport:
        listed = await self.models()
        return WorkerReport(models=listed.names, contexts=listed.contexts)

    def abandon(self) -> None:
        self.http.abandon()

    def close(self) -> None:
        self.http.close()

    async def models(self) -> ModelList:
        """Those that it serves."""
        listed: ModelList = await self.http.get_json("v1/models", ModelList)
        return listed


def raw(value: object) -> msgspec.Raw:
    """A value as raw JSON."""
    return msgspec.Raw(msgspec.json.encode(value))
