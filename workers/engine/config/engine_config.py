"""The settings that an engine is started with."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from workers.engine.config.lora_config import LoraConfig
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.errors import ConfigInvalid

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
KvDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "int4", "k8v4"]
Quantization = Literal["none", "int8", "int4"]
KvLayout = Literal["paged", "contiguous", "none"]
Batching = Literal["continuous", "static"]
AttentionName = Literal["auto", "sdpa", "triton"]
PriorityFirst = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The validated settings of one engine; None leaves the choice to the engine."""

    model: Path
    """A checkpoint directory in Hugging Face's layout."""
    block_size: int = 16
    """Tokens per KV block."""
    kv_tokens: int | None = None
    """Tokens that the KV pool holds, rounded down to whole blocks; None: what fits into the memory."""
    running_max: int = 32
    """Sequences computed in the same step."""
    waiting_max: int = 256
    """Sequences that may wait; one more is refused with QueueFull."""
    chunk_tokens: int = 512
    """Tokens computed in one step, over all sequences."""
    batching: Batching = "continuous"
    """"static" admits a whole batch when the last sequence of the one before has finished: a baseline."""
    chunked_prefill: bool = True
    """False computes each prompt in one step, however long the step takes: a baseline."""
    prefix_caching: bool = True
    """False shares no blocks between requests: a baseline."""
    priority_first: PriorityFirst = "lower"
    """Which priority goes first: "lower" as in vLLM, "higher" as in SGLang."""
    ageing_seconds: float = 60.0
    """The wait that compensates for one class of priority."""
    context_length: int | None = None
    """Tokens of prompt and output together; at most the model's context length, which is the default."""
    dtype: Dtype = "auto"
    """The type that the model computes in; "auto": the one that config.json names."""
    quantization: Quantization = "none"
    """How the linear layers of an unquantised checkpoint are quantised as it is read; AWQ and GPTQ need "none"."""
    kv_dtype: KvDtype = "auto"
    """The type that keys and values are stored in: `dtype`, or quantised. `k8v4`: keys in 8 bits, values in 4."""
    kv_layout: KvLayout = "paged"
    """`contiguous` reserves prompt and max_tokens in one run; `none` stores nothing, so each step computes all."""
    device: Device = "auto"
    """"auto": CUDA where there is a device, else the CPU."""
    attention_backend: AttentionName = "auto"
    """"auto": Triton kernels on a CUDA device that can run them, else torch's scaled_dot_product_attention."""
    cuda_graphs: bool = True
    """Replay decode steps as CUDA graphs, with the Triton backend on a CUDA device."""
    threads: int | None = None
    """Threads of torch. Torch has one number per process, so engines in one process share it."""
    seed: int | None = None
    """Makes requests without a seed of their own repeatable; None: a random seed from the system."""
    speculation: SpecConfig | None = None
    """The settings of speculative decoding; None: no speculation."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """The LoRA adapters that requests may name, and their bounds."""

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
            "attention_backend": AttentionName,
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
