"""Identifies the engine at an address: its kind, models and cache, and what it reports to a gateway.

ask_kind      a few small requests: enough to choose the adapter
find_engine   the adapter's own probe as well, and whether the engine tokenizes prompts
"""

import json
from dataclasses import dataclass

import msgspec

from workers.adapter import SupportsTokenize, WorkerFailed, WorkerReport, WorkerTarget
from workers.adapters.http import PROBE_SECONDS_MAX, HttpWorker, PathNotFound
from workers.adapters.registry import adapters
from workers.probing.doctor import diagnose
from workers.probing.engine_replies import EngineReply, kind_of

IDENTIFYING_PATHS = ("v1/models", "server_info", "get_server_info")
OTHER_PATHS = ("info", "api/version")
"""Paths that identify TGI and Ollama, requested if the list of models names no engine."""
DESCRIBING_PATHS = ("version", "metrics")
DEFAULT_BLOCK_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEngine:
    """An engine that was found at an address. Values that it does not report are None."""

    kind: str
    version: str | None
    page_size: int | None
    """Tokens of a block of its KV cache."""
    report: WorkerReport
    tokenizes: bool
    """Whether it returns the tokens of a text."""
    has_chat_template: bool
    """Whether it returns the tokens of a chat, or does not tokenize at all."""

    @property
    def block_size(self) -> int:
        """The size of blocks in a prefix index: the default if its pages fit into it, else its page size."""
        size = self.page_size
        return DEFAULT_BLOCK_SIZE if size is None or DEFAULT_BLOCK_SIZE % size == 0 else size


async def ask_kind(target: WorkerTarget) -> str:
    """Return the kind of engine at an address; `openai` if only its API is known. Raises WorkerFailed."""
    http = HttpWorker(target)
    try:
        return kind_of(await _identified(http, IDENTIFYING_PATHS))
    finally:
        http.close()


async def find_engine(target: WorkerTarget) -> FoundEngine:
    """Return everything that an engine reports about itself. Raises WorkerFailed."""
    http = HttpWorker(target)
    try:
        replies = await _identified(http, (*IDENTIFYING_PATHS, *DESCRIBING_PATHS))
    finally:
        http.close()
    kind = kind_of(replies)
    diagnosis = diagnose(replies, kind)
    adapter = adapters()[kind](target)
    try:
        report = await adapter.probe()
        model = report.models[0] if report.models else ""
        tokenizer = adapter if isinstance(adapter, SupportsTokenize) else None
        messages = [{"role": "user", "content": "Hello"}]
        return FoundEngine(
            kind=kind,
            version=diagnosis.version,
            page_size=diagnosis.block_size or next((one.page_size for one in report.events), None),
            report=report,
            tokenizes=tokenizer is not None and await _tokenizes(tokenizer, model=model, prompt="Hello"),
            has_chat_template=tokenizer is None
            or await _tokenizes(tokenizer, model=model, messages=messages),
        )
    finally:
        adapter.close()


async def _identified(http: HttpWorker, paths: tuple[str, ...]) -> dict[str, EngineReply]:
    """GET these paths, and further ones if they do not show the kind. Raises WorkerFailed."""
    replies = await _replies(http, paths)
    return {**replies, **await _replies(http, OTHER_PATHS)} if kind_of(replies) == "openai" else replies


async def _replies(http: HttpWorker, paths: tuple[str, ...]) -> dict[str, EngineReply]:
    """GET these paths. Raises WorkerFailed if /v1/models does not answer; other paths may be missing."""
    replies = {
        "v1/models": EngineReply(status=200, text=(await http.get("v1/models")).decode(errors="replace"))
    }
    for path in paths:
        if path in replies or (path == "get_server_info" and replies["server_info"].status == 200):
            continue
        try:
            text = (await http.get(path)).decode(errors="replace")
            replies[path] = EngineReply(status=200, text=text)
        except PathNotFound:
            replies[path] = EngineReply(status=404)
        except WorkerFailed:
            replies[path] = EngineReply(status=0)
    return replies


async def _tokenizes(adapter: SupportsTokenize, **fields: object) -> bool:
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    try:
        return bool(await adapter.tokenize(raw, PROBE_SECONDS_MAX))
    except WorkerFailed:
        return False
