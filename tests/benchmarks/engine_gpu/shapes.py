"""Models of real shapes with random weights: nothing is downloaded, and speed does not depend on the values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.tiny_checkpoint import build


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a model in the architecture of Qwen3, which all subjects know, and the work to be measured."""

    name: str
    dimensions: dict[str, int]
    dtype: str
    prompt_tokens: int
    decode_steps: int
    batches: tuple[int, ...]

    def built(self, root: Path) -> Path:
        """Build the checkpoint, in float32, and return its directory."""
        context = self.prompt_tokens + self.decode_steps + 1
        settings: dict[str, Any] = {**self.dimensions, "context": max(512, context)}
        return build(root / self.name, architecture="qwen3", init=0.02, **settings)


def weight_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Return the bytes that a decode step reads of the weights: all matrices but the embedding of other tokens."""
    attention = spec.hidden_size * spec.head_dim * 2 * (spec.heads + spec.kv_heads)
    layer = attention + 3 * spec.hidden_size * spec.intermediate_size
    return (spec.layers * layer + spec.vocab_size * spec.hidden_size) * itemsize


BATCHES = (1, 32, 256)
SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            name="tiny",
            dimensions={
                "hidden": 64,
                "layers": 2,
                "heads": 4,
                "kv_heads": 2,
                "intermediate": 96,
                "vocab": 512,
            },
            dtype="float32",
            prompt_tokens=32,
            decode_steps=8,
            batches=(1, 4),
        ),
        # 28 layers of 50 million weights, as in Qwen3-1.7B, and a smaller vocabulary: 6 GB on disk.
        Shape(
            name="1.5B",
            dimensions={
                "hidden": 2048,
                "layers": 28,
                "heads": 16,
                "kv_heads": 8,
                "intermediate": 6144,
                "vocab": 32768,
            },
            dtype="bfloat16",
            prompt_tokens=1024,
            decode_steps=128,
            batches=BATCHES,
        ),
        # 36 layers of 193 million weights, as in Qwen3-8B, and a smaller vocabulary: 29 GB on disk.
        Shape(
            name="7B",
            dimensions={
                "hidden": 4096,
                "layers": 36,
                "heads": 32,
                "kv_heads": 8,
                "intermediate": 12288,
                "vocab": 32768,
            },
            dtype="bfloat16",
            prompt_tokens=1024,
            decode_steps=128,
            batches=BATCHES,
        ),
    )
}
