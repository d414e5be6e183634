"""Parses the replies of an engine to questions about itself. The caller sends the questions.

The formats are those of SGLang 0.5.23, vLLM 0.32 and the embedded engine. Values that an engine does not report are
None, or empty.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PROBED_PATHS = ("version", "server_info", "kv_event_sources", "v1/loads")
"""Paths to GET after v1/models.

get_server_info is requested too if there is no server_info, and metrics after the completions.
"""

FIRST_COMPLETION, REPEATED_COMPLETION, PRIORITY_COMPLETION = (
    "first completion",
    "the same again",
    "a completion with a priority",
)
"""Keys of the replies to completions: the same prompt twice, then (vLLM only) one with a priority."""

KINDS = ("sglang", "vllm", "embedded", "llamacpp", "lmdeploy", "ollama", "tgi", "trtllm", "openai")

OWNERS = {"vllm": "vllm", "llamacpp": "llamacpp", "lmdeploy": "lmdeploy", "tensorrt_llm": "trtllm"}
"""Owner that an engine writes into its list of models -> kind of worker."""

PROMPT = "A doctor looks at an engine and asks it twice the same, to see what it remembers. " * 12
"""The prompt of the completions: longer than two blocks of 64 tokens in any tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReply:
    """An HTTP answer; status 0 means no answer."""

    status: int
    text: str = ""

    @property
    def json(self) -> Any:
        """The decoded body of a status 200 with JSON; else None."""
        if self.status != 200:
            return None
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


Replies = Mapping[str, EngineReply]
"""Replies by path, or by the key of a completion."""


def completion_body(model: str, **more: Any) -> dict[str, Any]:
    """Return the body of a request to v1/completions, for one token."""
    return {"model": model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "stream": False, **more}


def models_of(replies: Replies) -> tuple[str, ...]:
    """Return the names of the served models."""
    return tuple(str(entry["id"]) for entry in _model_entries(replies))


def kind_of(replies: Replies) -> str:
    """Return the kind of engine that the replies show; `openai` if they show only its API."""
    owners = {str(entry.get("owned_by")) for entry in _model_entries(replies)}
    info = server_info_of(replies)
    if "radixgate" in owners and "instance_id" in info:
        return "embedded"
    if "sglang" in owners or {"page_size", "max_total_num_tokens"} <= info.keys():
        return "sglang"
    if {"max_total_tokens", "max_concurrent_requests"} <= _object(replies, "info").keys():
        return "tgi"
    if "library" in owners and "version" in _object(replies, "api/version"):
        return "ollama"
    return next((kind for owner, kind in OWNERS.items() if owner in owners), "openai")


def most_cached_tokens(replies: Replies) -> int | None:
    """Return the largest number of cached tokens that a completion reported; None if none reported a number."""
    reported = [_cached(replies[name]) for name in (FIRST_COMPLETION, REPEATED_COMPLETION) if name in replies]
    return max((number for number in reported if number is not None), default=None)


def server_info_of(replies: Replies) -> Mapping[str, Any]:
    """Return /server_info, or the older /get_server_info; empty if there is neither."""
    return _object(replies, "server_info") or _object(replies, "get_server_info")


def _object(replies: Replies, path: str) -> Mapping[str, Any]:
    """Return the JSON object that a path answered; empty if it answered none."""
    body = replies[path].json if path in replies else None
    return body if isinstance(body, dict) else {}


def _model_entries(replies: Replies) -> list[Mapping[str, Any]]:
    body = replies["v1/models"].json if "v1/models" in replies else None
    data = body.get("data") if isinstance(body, dict) else None
    entries = data if isinstance(data, list) else ()
    return [entry for entry in entries if isinstance(entry, dict) and "id" in entry]


def usage_of(reply: EngineReply) -> Mapping[str, Any]:
    """Return the usage of a completion; empty without one."""
    body = reply.json
    usage = body.get("usage") if isinstance(body, dict) else None
    return usage if isinstance(usage, dict) else {}


def _cached(reply: EngineReply) -> int | None:
    details = usage_of(reply).get("prompt_tokens_details")
    return whole_number(details.get("cached_tokens")) if isinstance(details, dict) else None


def vllm_caches(replies: Replies) -> Iterator[dict[str, str]]:
    """Yield the labels of vllm:cache_config_info for each engine, which describe its cache."""
    text = replies["metrics"].text if "metrics" in replies else ""
    for labels in re.findall(r"^vllm:cache_config_info\{(.*)\}", text, re.M):
        yield dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))


def whole_number(value: object) -> int | None:
    """Return a whole number, which may be in a string; None for anything else."""
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def status_of(reply: EngineReply) -> str:
    """Return the status of a reply in words."""
    return f"status {reply.status}" if reply.status else "no answer"
