"""The control endpoints of a worker: health, identity, load, metrics, models, tokenization, aborts, flushes.

Shapes and names are SGLang's.
"""

from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import getpid
from typing import Any

import msgspec
from aiohttp import web

from workers.engine_server.engine_worker import WORKER, EngineWorker
from workers.engine_server.errors import ApiError, bad_request
from workers.engine_server.metrics import CONTENT_TYPE, exposition
from workers.engine_server.requests import AbortBody, DetokenizeBody, TokenizeBody, read
from workers.engine_server.served_models import model_entries, requested_lora


def _json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def health(request: web.Request) -> web.Response:
    """Answer GET /health and /ready: 200 when a request that comes now would be served, else 503."""
    worker = request.app[WORKER]
    if worker.ready:
        return _json_response({"status": "ok"})
    if worker.live_requests.draining:
        raise ApiError(503, "The worker is shutting down.", code="shutting_down")
    raise ApiError(503, "The engine has failed and answers no more.", code="engine_failed")


async def server_info(request: web.Request) -> web.Response:
    """Answer GET /server_info: the model, the limits and the identity of this process."""
    worker = request.app[WORKER]
    info = worker.engine.info
    return _json_response(
        {
            "model_path": str(worker.options.model),
            "served_model_name": worker.options.model_name,
            "page_size": info.block_size,
            "context_length": info.context_length,
            "max_total_num_tokens": info.pool_tokens,
            "max_running_requests": info.running_max,
            "dtype": info.dtype,
            "device": info.device,
            "attention_backend": info.attention_backend,
            "kv_cache_dtype": info.kv_dtype,
            "disaggregation_mode": worker.disaggregation.mode,
            "disaggregation_bootstrap_port": worker.disaggregation.port,
            "version": _version(),
            "instance_id": worker.instance,
            "kv_events": _kv_events(worker),
            "pid": getpid(),
        }
    )


async def loads(request: web.Request) -> web.Response:
    """Answer GET /v1/loads: one entry per data-parallel rank, of which this engine has one."""
    worker = request.app[WORKER]
    now = datetime.now(UTC).isoformat()
    return _json_response({"timestamp": now, "version": _version(), "loads": [_loads_of_rank(worker, now)]})


async def metrics(request: web.Request) -> web.Response:
    """Answer GET /metrics for Prometheus, under vLLM's names and under SGLang's."""
    worker = request.app[WORKER]
    body = exposition(worker.engine, worker.options.model_name)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def models(request: web.Request) -> web.Response:
    """Answer GET /v1/models: the served model, and its LoRA adapters."""
    worker = request.app[WORKER]
    return _json_response({"object": "list", "data": model_entries(worker)})


async def model(request: web.Request) -> web.Response:
    """Answer GET /v1/models/{model}; 404 for a model that is not served."""
    worker, name = request.app[WORKER], request.match_info["model"]
    requested_lora(worker, name)
    return _json_response(next(entry for entry in model_entries(worker) if entry["id"] == name))


async def tokenize(request: web.Request) -> web.Response:
    """Answer POST /tokenize: the tokens that a prompt or a conversation would have."""
    worker = request.app[WORKER]
    body = await read(request, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("Send either prompt or messages.", param="prompt")
    if body.messages is not None:
        tokens = await worker.prompt_tokenizer.tokenize_chat(
            body.messages,
            tools=body.tools,
            variables=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=body.continue_final_message is True,
        )
    else:
        special = body.add_special_tokens is not False
        tokens = await worker.prompt_tokenizer.tokenize_text(
            body.prompt or "", add_special_tokens=special, param="prompt"
        )
    return _json_response(
        {"tokens": tokens, "count": len(tokens), "max_model_len": worker.engine.info.context_length}
    )


async def detokenize(request: web.Request) -> web.Response:
    """Answer POST /detokenize: the text of tokens; vLLM names the field `prompt`, SGLang `text`."""
    worker = request.app[WORKER]
    body = await read(request, DetokenizeBody)
    vocab_size = worker.engine.limits.vocab_size
    if not all(0 <= token < vocab_size for token in body.tokens):
        raise bad_request(f"Token ids must be between 0 and {vocab_size - 1}.", param="tokens")
    text = await worker.prompt_tokenizer.detokenize(body.tokens, special=body.skip_special_tokens is False)
    return _json_response({"prompt": text, "text": text})


async def abort_request(request: web.Request) -> web.Response:
    """Answer POST /abort_request: end one request or all, and return how many there were."""
    worker = request.app[WORKER]
    body = await read(request, AbortBody)
    if not body.abort_all and not body.rid:
        raise bad_request("Send a rid, or abort_all.", param="rid")
    ids = worker.live_requests.engine_ids(None if body.abort_all else body.rid)
    for engine_id in ids:
        worker.engine.abort(engine_id)
    return _json_response({"aborted": len(ids)})


async def flush_cache(request: web.Request) -> web.Response:
    """Answer POST /flush_cache: drop every cached prefix; 400 while requests run or wait."""
    if not await request.app[WORKER].engine.flush_cache():
        raise bad_request("The cache is in use: requests run or wait.", code="requests_running")
    return _json_response({"success": True})


def _kv_events(worker: EngineWorker) -> dict[str, Any] | None:
    """Return where KV events are published, in SGLang's fields; None if they are not published."""
    publisher = worker.publisher
    if publisher is None:
        return None
    return {
        "publisher": "zmq",
        "endpoint_host": worker.options.kv_events_host,
        "endpoint_port_base": publisher.port,
        "replay_endpoint_port_base": publisher.replay_port,
        "topic": publisher.topic,
        "block_size": worker.engine.info.block_size,
        "dp_size": 1,
    }


def _loads_of_rank(worker: EngineWorker, now: str) -> dict[str, Any]:
    loads = worker.engine.loads
    return {
        "dp_rank": 0,
        "timestamp": now,
        "num_running_reqs": loads.running,
        "num_waiting_reqs": loads.waiting,
        "num_waiting_uncached_tokens": loads.waiting_uncached_tokens,
        "num_used_tokens": loads.used_tokens,
        "max_total_num_tokens": loads.pool_tokens,
        "max_running_requests": worker.engine.info.running_max,
        "token_usage": round(loads.used_tokens / loads.pool_tokens, 4),
        "gen_throughput": round(loads.generated_per_second, 2),
        "cache_hit_rate": round(loads.cache_hit_rate, 4),
        "disaggregation": worker.disaggregation.counts(),
    }


def _version() -> str:
    try:
        return version("radixgate")
    except PackageNotFoundError:
        # The source runs without being installed.
        return "unknown"
