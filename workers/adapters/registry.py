"""The registry of adapters by kind of worker: built-in ones, and adapters of packages, found by entry point."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from workers.adapter import WorkerAdapter, WorkerTarget
from workers.adapters.llamacpp import LlamaCppAdapter
from workers.adapters.lmdeploy import LmdeployAdapter
from workers.adapters.ollama import OllamaAdapter
from workers.adapters.openai import OpenAIAdapter
from workers.adapters.sglang import EmbeddedAdapter, SglangAdapter
from workers.adapters.tgi import TgiAdapter
from workers.adapters.trtllm import TrtllmAdapter
from workers.adapters.vllm import VllmAdapter

GROUP = "radixgate.worker_adapters"
"""Entry-point group of further adapters; an entry point names a callable that takes a WorkerTarget."""

NewAdapter = Callable[[WorkerTarget], WorkerAdapter]

BUILT_IN: Mapping[str, NewAdapter] = {
    "openai": OpenAIAdapter,
    "vllm": VllmAdapter,
    "sglang": SglangAdapter,
    "embedded": EmbeddedAdapter,
    "llamacpp": LlamaCppAdapter,
    "lmdeploy": LmdeployAdapter,
    "ollama": OllamaAdapter,
    "tgi": TgiAdapter,
    "trtllm": TrtllmAdapter,
}


@cache
def adapters() -> Mapping[str, NewAdapter]:
    """Return the adapter of every kind of worker. A package cannot take the name of a built-in kind.

    Installed packages are searched only once, since that reads the disk and every discovered worker needs the
    result.
    """
    found = {point.name: partial(_made, point) for point in entry_points(group=GROUP)}
    return MappingProxyType({**found, **BUILT_IN})


def _made(point: EntryPoint, target: WorkerTarget) -> WorkerAdapter:
    """Make an adapter of a package; the package is loaded for the first worker of its kind.

    Raises ValueError if it cannot be loaded; workers of other kinds are not affected.
    """
    try:
        made: NewAdapter = point.load()
    except (ImportError, AttributeError, SyntaxError) as err:
        raise ValueError(
            f"kind {point.name!r} ({point.value}) cannot be loaded: {type(err).__name__}: {err}"
        ) from err
    return made(target)
