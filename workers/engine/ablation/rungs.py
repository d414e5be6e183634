"""The rungs: each has the settings of the one below it, and one of them changed.

    no KV cache            every step computes every sequence from its first token
    contiguous KV          one run of memory for each request, for all that it may ever need
    paged KV               memory in blocks, taken when they are needed
    continuous batching    a finished request's place is taken in the next step
    chunked prefill        long prompts are computed beside the decodes of others
    prefix caching         what was computed once is read again
    speculation            several tokens are verified in one step

The first three compute in static batches: a batch is let in when the last of the one before has finished.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from workers.engine.config.engine_config import EngineConfig
from workers.engine.config.speculation_config import SpecConfig

NAIVE: dict[str, Any] = {
    "kv_layout": "none",
    "batching": "static",
    "chunked_prefill": False,
    "prefix_caching": False,
    "speculation": None,
}
CHANGES: dict[str, dict[str, Any]] = {
    "no KV cache": {},
    "contiguous KV": {"kv_layout": "contiguous"},
    "paged KV": {"kv_layout": "paged"},
    "continuous batching": {"batching": "continuous"},
    "chunked prefill": {"chunked_prefill": True},
    "prefix caching": {"prefix_caching": True},
    "speculation": {"speculation": SpecConfig(method="ngram", num_tokens=4)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRung:
    """One engine to measure, and how it differs from the one before."""

    name: str
    config: EngineConfig


def rungs(base: EngineConfig) -> Iterator[LadderRung]:
    """All of them, from the lowest; `base` gives model, memory and sizes."""
    config = replace(base, **NAIVE)
    for name, change in CHANGES.items():
        config = replace(config, **change)
        yield LadderRung(name=name, config=config)
