"""The roofline counts weights once for a batch, and keys and values for each sequence."""

from pathlib import Path

import pytest
import torch

from tests.benchmarks.engine_gpu.roofline import Roofline
from tests.benchmarks.engine_gpu.shapes import SHAPES, weight_bytes
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.model.weight_loading import load_decoder

ROOFLINE = Roofline(weight_bytes=15_000_000_000, kv_bytes_per_token=131_072, bandwidth=4.8e12)
"""Llama-3.1-8B in bfloat16 on a device of 4.8 TB/s."""


@pytest.mark.parametrize(("batch", "tokens_per_second"), [(1, 317), (32, 7960), (256, 24_900)])
def test_the_ceiling_of_an_eight_billion_model_at_a_thousand_tokens(
    batch: int, tokens_per_second: int
) -> None:
    assert ROOFLINE.ceiling(batch, 1024) == pytest.approx(tokens_per_second, rel=0.01)
    assert ROOFLINE.share(tokens_per_second / 2, batch, 1024) == pytest.approx(0.5, rel=0.01)


def test_the_weights_that_are_counted_are_those_that_a_step_reads(tmp_path: Path) -> None:
    model = SHAPES["tiny"].built(tmp_path)
    spec = ModelSpec.from_directory(model)
    decoder = load_decoder(
        model, spec, context_length=64, dtype=torch.float32, device=torch.device("cpu"), quantization="none"
    )
    assert weight_bytes(spec, 4) == decoder.linear_bytes + decoder.head.num_bytes
