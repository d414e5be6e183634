"""What an engine answered when it was asked about itself. Pure: somebody else has asked.

Shapes are those of SGLang 0.5.23, vLLM 0.32 and the embedded engine. What an engine does not tell is None, or
empty.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ASKED = ("version", "server_info", "kv_event_sources", "v1/loads")
"""Paths to GET, after v1/models; get_server_info where there is no server_info; metrics, after the completions."""

FIRST, AGAIN, PRIORITY = "first completion", "the same again", "a completion with a priority"
"""What the replies to completions go by: twice the same prompt, then (vLLM only) one with a priority."""

KINDS = ("sglang", "vllm", "embedded", "openai")

PROMPT = "A doctor looks at an engine and asks it twice the same, to see what it remembers. " * 12
"""Longer than two blocks of 64 tokens in any tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer, or (status 0) none."""

    status: int
    text: str = ""

    @property
    def json(self) -> Any:
        """The decoded body of a 200; None if it is not that."""
        if self.status != 200:
            return None
        try:
            return json.loads(self.text)
        except ValueError:
            return None


Replies = Mapping[str, Reply]


def completion(model: str, **more: Any) -> dict[str, Any]:
    """The body for v1/completions: one token."""
    return {"model": model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "stream": False, **more}


def models_of(replies: Replies) -> tuple[str, ...]:
    """Names of the models that it serves."""
    return tuple(str(entry["id"]) for entry in _model_entries(replies))


def kind_of(replies: Replies) -> str:
    """Which engine this is, by what it says of itself; `openai`: it speaks that, and no more is known."""
    owners = {entry.get("owned_by") for entry in _model_entries(replies)}
    info = server_info_of(replies)
    if "radixgate" in owners and "instance_id" in info:
        return "embedded"
    if "vllm" in owners:
        return "vllm"
    if "sglang" in owners or {"page_size", "max_total_num_tokens"} <= info.keys():
        return "sglang"
    return "openai"


def cached_tokens(replies: Replies) -> int | None:
    """The most cached tokens that an answer has reported; None if none has reported any number."""
    told = [_cached(replies[name]) for name in (FIRST, AGAIN) if name in replies]
    return max((number for number in told if number is not None), default=None)


def server_info_of(replies: Replies) -> Mapping[str, Any]:
    for path in ("server_info", "get_server_info"):
        told = replies[path].json if path in replies else None
        if isinstance(told, dict):
            return told
    return {}


def _model_entries(replies: Replies) -> list[Mapping[str, Any]]:
    told = replies["v1/models"].json if "v1/models" in replies else None
    data = told.get("data") if isinstance(told, dict) else None
    return [entry for entry in data or () if isinstance(entry, dict) and "id" in entry]


def usage_of(reply: Reply) -> Mapping[str, Any]:
    told = reply.json
    usage = told.get("usage") if isinstance(told, dict) else None
    return usage if isinstance(usage, dict) else {}


def _cached(reply: Reply) -> int | None:
    details = usage_of(reply).get("prompt_tokens_details")
    return whole_number(details.get("cached_tokens")) if isinstance(details, dict) else None


def vllm_caches(replies: Replies) -> Iterator[dict[str, str]]:
    """The labels of vllm:cache_config_info, of each engine: how its cache is configured."""
    text = replies["metrics"].text if "metrics" in replies else ""
    for labels in re.findall(r"^vllm:cache_config_info\{(.*)\}", text, re.M):
        yield dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))


def whole_number(value: object) -> int | None:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def status_of(reply: Reply) -> str:
    return f"status {reply.status}" if reply.status else "no answer"
