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


def kv_events(
    kind: str, port: int = EVENTS_PORT, replay_port: int = REPLAY_PORT, at: str | None = None
) -> tuple[str, ...]:
    """Events of rank 0 on `port`, further ranks on the next ones; and their replay.

    `at`: the address to listen on; None: all. vLLM listens on one only where it chooses the port itself (0), and
    then on the one of VLLM_HOST_IP.
    """
    if kind not in ("sglang", "vllm"):
        return ()
    host = at if at is not None and kind == "sglang" else "*"
    config = {
        **({"enable_kv_cache_events": True} if kind == "vllm" else {}),
        "publisher": "zmq",
        "endpoint": f"tcp://{host}:{port}",
        # Without a word on it, engines connect to an address that is no wildcard.
        **({"bind": True} if host != "*" else {}),
        "replay_endpoint": f"tcp://{host}:{replay_port}",
    }
    return "--kv-events-config", json.dumps(config, separators=(",", ":"))


def load_feed(kind: str, port: int) -> tuple[str, ...]:
    """How busy rank 0 is on `port`, further ranks on the next ones. The engine takes no address but all of them."""
    return ("--load-publish-endpoint", f"tcp://*:{port}") if kind == "sglang" else ()


def in_words(flags: Sequence[str]) -> str:
    """As they are typed into a shell."""
    return shlex.join(flags)
