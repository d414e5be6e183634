"""The rungs of the ladder: engines of which each has one setting more than the one below it.

    no KV cache            every step computes every sequence from its first token
    contiguous KV          one run of memory for each request, for all tokens that it may ever need
    paged KV               memory in blocks, allocated when they are needed
    continuous batching    a waiting request takes a finished one's place in the next step
    chunked prefill        long prompts are computed beside the decodes of others
    prefix caching         the KV of equal prefixes is computed once and reused
    speculation            several tokens are verified in one step

The first three compute in static batches: a batch starts when the last request of the previous one has finished.
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
    """One rung: the configuration of an engine to measure."""

    name: str
    config: EngineConfig


def rungs(base: EngineConfig) -> Iterator[LadderRung]:
    """Yield all rungs from the lowest; `base` gives the model, the memory and the sizes."""
    config = replace(base, **NAIVE)
    for name, change in CHANGES.items():
        config = replace(config, **change)
        yield LadderRung(name=name, config=config)
