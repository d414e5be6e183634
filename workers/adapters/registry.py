"""Kinds of workers to adapters: the built-in ones, and those that packages bring by entry point."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

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


@cache
def adapters() -> Mapping[str, NewAdapter]:
    """Every kind there is. A package cannot take the name of a built-in one.

    Packages are looked at once: it means reading the disk, and every worker that is found is held against this.
    """
    found = {point.name: partial(_made, point) for point in entry_points(group=GROUP)}
    return MappingProxyType({**found, **BUILT_IN})


def _made(point: EntryPoint, target: WorkerTarget) -> WorkerAdapter:
    """An adapter of a package, which is loaded for the first worker of its kind. Raises ValueError where it cannot
    be: workers of other kinds do not need it."""
    try:
        made: NewAdapter = point.load()
    except (ImportError, AttributeError, SyntaxError) as err:
        raise ValueError(
            f"kind {point.name!r} ({point.value}) cannot be loaded: {type(err).__name__}: {err}"
        ) from err
    return made(target)
