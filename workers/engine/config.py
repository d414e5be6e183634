"""What the engine is started with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from workers.engine.errors import ConfigInvalid

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]


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
    context_length: int | None = None
    """Prompt and output together; at most what the model was made for, which is also the default."""
    dtype: Dtype = "auto"
    device: Device = "auto"
    threads: int | None = None
    """Threads of torch. Torch keeps one number per process, so engines in one process share it."""
    seed: int | None = None
    """Makes requests without a seed of their own repeatable; None draws from the system."""

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
        if self.dtype not in get_args(Dtype):
            raise ConfigInvalid(f"dtype must be one of {', '.join(get_args(Dtype))}, not {self.dtype!r}")
        if self.device not in get_args(Device):
            raise ConfigInvalid(f"device must be one of {', '.join(get_args(Device))}, not {self.device!r}")
