"""The flags with which an engine offers a gateway what that makes use of: to launch one with, and to look for.

By kind; a kind that is not named needs none. As of SGLang 0.5.23 and vLLM 0.32.
"""

import json
import shlex
from collections.abc import Mapping, Sequence

Flags = Mapping[str, tuple[str, ...]]

CACHE_REPORT: Flags = {"sglang": ("--enable-cache-report",), "vllm": ("--enable-prompt-tokens-details",)}
PREFIX_CACHING: Flags = {"vllm": ("--enable-prefix-caching",)}
PRIORITY: Flags = {
    "sglang": ("--enable-priority-scheduling",),
    "vllm": ("--scheduling-policy", "priority"),
}
METRICS: Flags = {"sglang": ("--enable-metrics",)}

PAGE_SIZE_FLAG = {"sglang": "--page-size", "vllm": "--block-size", "embedded": "--page-size"}
PAGE_SIZE = {"sglang": 16, "vllm": 32, "embedded": 16}
"""vLLM's CPU kernels want multiples of 32, and its GPU kernels take them."""

EVENTS_PORT, REPLAY_PORT = 5557, 6557


def page_size(kind: str, tokens: int | None = None) -> tuple[str, ...]:
    """`tokens`: None takes what is good for the kind."""
    if kind not in PAGE_SIZE_FLAG:
        return ()
    return PAGE_SIZE_FLAG[kind], str(tokens or PAGE_SIZE[kind])


def kv_events(kind: str, port: int = EVENTS_PORT, replay_port: int = REPLAY_PORT) -> tuple[str, ...]:
    """Events of rank 0 on `port`, further ranks on the next ones; and their replay. A `*` makes engines listen, a
    host makes them connect."""
    if kind not in ("sglang", "vllm"):
        return ()
    config = {
        **({"enable_kv_cache_events": True} if kind == "vllm" else {}),
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay_port}",
    }
    return "--kv-events-config", json.dumps(config, separators=(",", ":"))


def in_words(flags: Sequence[str]) -> str:
    """As they are typed into a shell."""
    return shlex.join(flags)
