"""What the engine is started with."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from workers.engine.config.speculation_config import SpecConfig
from workers.engine.errors import ConfigInvalid

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
KvDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "k8v4"]
Quantization = Literal["none", "int8", "int4"]
KvLayout = Literal["paged", "contiguous", "none"]
Batching = Literal["continuous", "static"]
PriorityFirst = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Validated settings of one engine; `None` means "choose for me"."""

    model: Path
    """A checkpoint directory in Hugging Face's layout."""
    block_size: int = 16
    """Tokens per KV block."""
    kv_tokens: int | None = None
    """Tokens that the KV pool holds; rounded down to whole blocks."""
    running_max: int = 32
    """Sequences computed at the same time."""
    waiting_max: int = 256
    """Sequences that may wait; one more is refused with QueueFull."""
    chunk_tokens: int = 512
    """Tokens computed in one step, over all sequences."""
    batching: Batching = "continuous"
    """"static" lets a whole batch in when the last of the one before has finished: a baseline."""
    chunked_prefill: bool = True
    """False computes each prompt in one piece, however long the step gets: a baseline."""
    prefix_caching: bool = True
    """False shares nothing between requests: a baseline."""
    priority_first: PriorityFirst = "lower"
    """Which priority goes first: "lower" as in vLLM, "higher" as in SGLang."""
    ageing_seconds: float = 60.0
    """How long a wait makes up for one class of priority."""
    context_length: int | None = None
    """Prompt and output together; at most what the model was made for, which is also the default."""
    dtype: Dtype = "auto"
    quantization: Quantization = "none"
    """Quantise the linear layers of a plain checkpoint as it is read. AWQ and GPTQ ones stay as they are."""
    kv_dtype: KvDtype = "auto"
    """How keys and values are kept: as `dtype`, or quantised. `k8v4`: keys in 8 bits, values in 4."""
    kv_layout: KvLayout = "paged"
    """`contiguous` reserves prompt and max_tokens in one run; `none` keeps nothing and computes all again."""
    device: Device = "auto"
    threads: int | None = None
    """Threads of torch. Torch keeps one number per process, so engines in one process share it."""
    seed: int | None = None
    """Makes requests without a seed of their own repeatable; None draws from the system."""
    speculation: SpecConfig | None = None
    """Who guesses tokens ahead; None: nobody."""

    def __post_init__(self) -> None:
        for name in (
            "block_size",
            "kv_tokens",
            "running_max",
            "waiting_max",
            "chunk_tokens",
            "context_length",
            "threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigInvalid(f"{name} must be at least 1, not {value}")
        if self.kv_tokens is not None and self.kv_tokens < self.block_size:
            raise ConfigInvalid(
                f"kv_tokens {self.kv_tokens} is less than one block of {self.block_size} tokens"
            )
        choices = {
            "dtype": Dtype,
            "device": Device,
            "kv_dtype": KvDtype,
            "quantization": Quantization,
            "kv_layout": KvLayout,
            "batching": Batching,
            "priority_first": PriorityFirst,
        }
        for name, names in choices.items():
            if getattr(self, name) not in get_args(names):
                raise ConfigInvalid(
                    f"{name} must be one of {', '.join(get_args(names))}, not {getattr(self, name)!r}"
                )
        if not (math.isfinite(self.ageing_seconds) and self.ageing_seconds > 0):
            raise ConfigInvalid(f"ageing_seconds must be more than 0, not {self.ageing_seconds}")
