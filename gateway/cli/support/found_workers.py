"""Workers named by their addresses alone: asks each for its kind, models and block size, for the settings."""

import asyncio
import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.cli.support.command_error import CommandError
from gateway.settings.urls import url_problem
from gateway.settings.workers import worker_id_of
from radix_cache.match import WorkerId
from workers.adapter import WorkerFailed, WorkerTarget
from workers.probing.identification import DEFAULT_BLOCK_SIZE, FoundEngine, find_engine

ENGINE_NAMES = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "embedded": "radixgate's embedded engine",
    "llamacpp": "llama.cpp",
    "lmdeploy": "LMDeploy",
    "ollama": "Ollama",
    "tgi": "Text Generation Inference",
    "trtllm": "TensorRT-LLM",
    "openai": "unknown (a server with an OpenAI API)",
}
ASK_SECONDS = 1.0
"""Time between two questions to a worker that does not answer."""

MODELS_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorker:
    """A worker that answered at its address."""

    url: str
    engine: FoundEngine

    @property
    def model(self) -> str | None:
        """The name of its first model."""
        return self.engine.report.models[0] if self.engine.report.models else None


def worker_urls(given: Sequence[str]) -> list[str]:
    """Return the addresses as settings have them. Raises CommandError."""
    urls = []
    for text in given:
        url = (text if "://" in text else f"http://{text}").rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")) or (problem := url_problem(url)) is not None:
            why = problem if url.startswith("http") else "an address begins with http:// or https://"
            raise CommandError(f"{text}: {why}", 2)
        if url in urls:
            raise CommandError(f"{text}: is named twice", 2)
        urls.append(url)
    return urls


async def find_workers(
    urls: Sequence[str], api_key: str | None, seconds_max: float, notify: Callable[[str], None]
) -> list[FoundWorker]:
    """Ask the workers at these addresses for their kind and models, and wait for those that are starting.

    Args:
        urls: addresses of the workers.
        api_key: bearer token for all of them.
        seconds_max: longest wait for a worker that does not answer.
        notify: called with one line whenever the reason changes why a worker is waited for.

    Raises:
        CommandError: a worker has not answered in time, or serves no models.
    """
    deadline = asyncio.get_running_loop().time() + seconds_max
    return list(await asyncio.gather(*(_find(url, api_key, deadline, notify) for url in urls)))


async def _find(url: str, api_key: str | None, deadline: float, notify: Callable[[str], None]) -> FoundWorker:
    target = WorkerTarget(id=WorkerId(worker_id_of(url)), url=url, api_key=api_key)
    known = ""
    while True:
        try:
            engine = await find_engine(target)
        except WorkerFailed as err:
            trouble = str(err)
        else:
            if engine.report.models:
                return FoundWorker(url=url, engine=engine)
            trouble = "it serves no models"
        if "status 401" in trouble or "status 403" in trouble:
            raise CommandError(f"{url} refuses the key ({trouble}): name its variable with --worker-key-env")
        if asyncio.get_running_loop().time() + ASK_SECONDS > deadline:
            raise CommandError(
                f"{url} does not answer as a server with an OpenAI API: {trouble} (--wait-seconds waits longer)"
            )
        if trouble != known:
            notify(f"waiting for {url}: {trouble}")
            known = trouble
        await asyncio.sleep(ASK_SECONDS)


def describe(worker: FoundWorker) -> Iterator[str]:
    """Yield lines with everything that was found about a worker."""
    engine, report = worker.engine, worker.engine.report
    yield worker.url
    version = f" {engine.version}" if engine.version else ""
    yield f"  engine     {ENGINE_NAMES[engine.kind]}{version}, kind {engine.kind}"
    for at, model in enumerate(report.models[:MODELS_SHOWN_MAX]):
        length = report.context_lengths.get(model)
        yield f"  {'models' if at == 0 else '':<10} {model}{f', context of {length} tokens' if length else ''}"
    if len(report.models) > MODELS_SHOWN_MAX:
        yield f"  {'':<10} and {len(report.models) - MODELS_SHOWN_MAX} more"
    page = f"blocks of {engine.page_size} tokens" if engine.page_size else "block size unknown"
    size = f", {report.kv_tokens_max} tokens in all" if report.kv_tokens_max else ""
    yield f"  cache      {page}{size}"
    slots = f"{report.slots} requests at a time" if report.slots else "not reported; workers[].slots"
    yield f"  slots      {slots}"
    yield f"  tokens     {'the engine tokenizes prompts' if engine.tokenizes else 'estimated from the text'}"
    yield f"  load       {_load(engine)}"
    yield f"  KV events  {_events(engine)}"


def _load(engine: FoundEngine) -> str:
    if engine.report.loads:
        return f"published at {engine.report.loads[0].endpoint}"
    return "read by probes" if engine.report.load is not None else "counted from the gateway's own requests"


def _events(engine: FoundEngine) -> str:
    if engine.report.events:
        first = engine.report.events[0]
        replay = " with replay" if first.replay is not None else ""
        return f"published at {first.endpoint}{replay}"
    return "none: caches are predicted from requests (`radixgate doctor URL` shows the flags to add)"


def settings_of(found: Iterable[FoundWorker], key_variable: str | None = None) -> dict[str, Any]:
    """Return the branches `workers` and `models` of settings with these workers.

    `key_variable` is the environment variable that has the workers' key.
    """
    workers = []
    block_sizes: dict[str, int] = {}
    tokenizers: dict[str, str] = {}
    for one in found:
        worker = {"id": worker_id_of(one.url), "kind": one.engine.kind, "url": one.url}
        if key_variable is not None:
            worker["api_key"] = f"${{env:{key_variable}}}"
        workers.append(worker)
        for model in one.engine.report.models:
            block_sizes[model] = math.lcm(block_sizes.get(model, 1), one.engine.block_size)
            if one.engine.tokenizes:
                tokenizers[model] = "worker"
    models = [
        {"name": name, "tokenizer": tokenizers.get(name, "text"), "block_size": size}
        for name, size in block_sizes.items()
        if name in tokenizers or size != DEFAULT_BLOCK_SIZE
    ]
    return {"workers": workers, **({"models": models} if models else {})}


def as_assignments(settings: dict[str, Any]) -> list[str]:
    """Return the settings as values of --set."""
    return [f"{name}={json.dumps(value)}" for name, value in settings.items()]


def curl_line(url: str, worker: FoundWorker, key: str | None) -> str:
    """Return a command line that sends a first request, with a key if one is needed."""
    body: dict[str, Any] = {"model": worker.model, "max_tokens": 32}
    if worker.engine.has_chat_template:
        path, body["messages"] = "chat/completions", [{"role": "user", "content": "Hello"}]
    else:
        path, body["prompt"] = "completions", "Hello"
    header = f"-H 'Authorization: Bearer {key}' " if key is not None else ""
    return (
        f"curl {url}/v1/{path} {header}-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )
