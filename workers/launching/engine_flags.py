"""The engine flags that turn on what a gateway needs, for launching engines and for advising operators.

Each table maps kinds of engine to flags; a missing kind needs none. As of SGLang 0.5.23 and vLLM 0.32.
"""

import json
import shlex
from collections.abc import Mapping, Sequence

FlagsByKind = Mapping[str, tuple[str, ...]]
"""Command-line words by kind of engine."""

CACHE_REPORT: FlagsByKind = {
    "sglang": ("--enable-cache-report",),
    "vllm": ("--enable-prompt-tokens-details",),
}
PREFIX_CACHING: FlagsByKind = {"vllm": ("--enable-prefix-caching",)}
PRIORITY: FlagsByKind = {
    "sglang": ("--enable-priority-scheduling",),
    "vllm": ("--scheduling-policy", "priority"),
}
METRICS: FlagsByKind = {"sglang": ("--enable-metrics",)}

PAGE_SIZE_FLAG = {"sglang": "--page-size", "vllm": "--block-size", "embedded": "--page-size"}
PAGE_SIZE = {"sglang": 16, "vllm": 32, "embedded": 16}
"""Recommended page sizes in tokens: vLLM's CPU kernels need multiples of 32, and its GPU kernels accept them."""

EVENTS_PORT, REPLAY_PORT = 5557, 6557
"""Default ports of KV events, and of their replay."""


def page_size_flags(kind: str, tokens: int | None = None) -> tuple[str, ...]:
    """Return the flags for a page size in tokens; None: the recommended size for the kind."""
    if kind not in PAGE_SIZE_FLAG:
        return ()
    return PAGE_SIZE_FLAG[kind], str(tokens or PAGE_SIZE[kind])


def kv_events_flags(
    kind: str, port: int = EVENTS_PORT, replay_port: int = REPLAY_PORT, at: str | None = None
) -> tuple[str, ...]:
    """Return the flags that publish KV events and their replays: rank 0 on these ports, further ranks on the next.

    `at` is the address to listen on; None: all. vLLM listens on a single address only if it chooses the port itself
    (0), and then on the address in VLLM_HOST_IP.
    """
    if kind not in ("sglang", "vllm"):
        return ()
    host = at if at is not None and kind == "sglang" else "*"
    config = {
        **({"enable_kv_cache_events": True} if kind == "vllm" else {}),
        "publisher": "zmq",
        "endpoint": f"tcp://{host}:{port}",
        # Without `bind`, engines connect to an address other than a wildcard, instead of listening on it.
        **({"bind": True} if host != "*" else {}),
        "replay_endpoint": f"tcp://{host}:{replay_port}",
    }
    return "--kv-events-config", json.dumps(config, separators=(",", ":"))


def load_feed_flags(kind: str, port: int) -> tuple[str, ...]:
    """Return the flags that publish the load of engine ranks: rank 0 on `port`, further ranks on the next ports.

    The engine can only listen on all addresses.
    """
    return ("--load-publish-endpoint", f"tcp://*:{port}") if kind == "sglang" else ()


def shell_words(flags: Sequence[str]) -> str:
    """Return flags quoted for a shell."""
    return shlex.join(flags)
