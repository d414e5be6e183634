"""Models with random weights, built for the benchmark: speed does not depend on the values of weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.engine.tiny_checkpoint import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The shape of a model, and how much work the benchmark gives it."""

    name: str
    shape: dict[str, Any]
    prefill_tokens: int
    decode_steps: int
    arrival_seconds: float
    """How long mixed requests go on arriving: short enough that neither side is ever idle."""
    requests: int = 96
    """The requests of each traffic of mixed lengths."""
    mixed_rounds: int = 3
    """How often each such traffic is measured."""
    context: int = 128
    """The tokens of each prompt when decoding begins."""

    @property
    def weights_read(self) -> int:
        """The numbers that a decode step reads: all matrices, but only one row of the embedding."""
        hidden, inner = self.shape["hidden"], self.shape["intermediate"]
        keys = hidden // self.shape["heads"] * self.shape["kv_heads"]
        layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner
        return self.shape["layers"] * layer + self.shape["vocab"] * hidden

    def built(self, root: Path) -> Path:
        """Build the checkpoint and return its directory."""
        return build(root / self.name, **self.shape)


TINY = Model(
    name="tiny",
    shape={"hidden": 128, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 256, "vocab": 1024},
    prefill_tokens=1024,
    decode_steps=64,
    arrival_seconds=0.2,
)
HUNDRED_MILLION = Model(
    name="100M",
    # 12 layers of 6.3 million, and 12.6 million each for embedding and head.
    shape={
        "hidden": 768,
        "layers": 12,
        "heads": 12,
        "kv_heads": 4,
        "intermediate": 2048,
        "vocab": 16384,
        "init": 0.02,
    },
    prefill_tokens=512,
    decode_steps=16,
    arrival_seconds=1.0,
    requests=64,
    mixed_rounds=2,
    context=32,
)
