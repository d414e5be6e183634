"""Kinds of workers to adapters: the built-in ones, and those that packages bring by entry point."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from workers.adapter import WorkerAdapter, WorkerTarget
from workers.adapters.openai import OpenAIAdapter
from workers.adapters.sglang import EmbeddedAdapter, SglangAdapter
from workers.adapters.vllm import VllmAdapter

GROUP = "radixgate.worker_adapters"

NewAdapter = Callable[[WorkerTarget], WorkerAdapter]

BUILT_IN: Mapping[str, NewAdapter] = {
    "openai": OpenAIAdapter,
    "vllm": VllmAdapter,
    "sglang": SglangAdapter,
    "embedded": EmbeddedAdapter,
}


def adapters() -> dict[str, Any]:
    """Every kind there is. A package cannot take the name of a built-in one."""
    found: dict[str, Any] = {point.name: point.load() for point in entry_points(group=GROUP)}
    return {**found, **BUILT_IN}
