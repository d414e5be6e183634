"""Linear layers of one byte and of half a byte a weight: their error, their size, and two ways that agree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.workers.engine.model.test_decoder import forced_logits
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import ConfigInvalid
from workers.engine.model import packed_weights
from workers.engine.model.linear import PlainLinear, StackedLinear
from workers.engine.model.packed_weights import PackedInt4
from workers.engine.model.quantization import GroupedLinear, GroupedWeight, Int8Linear, build_projection
from workers.engine_server.options import WorkerOptions

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def weight(outputs: int, inputs: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)).to(dtype)


def spread(groups: GroupedWeight) -> torch.Tensor:
    """The weight that groups stand for, by the formula alone."""
    wide = [part.repeat_interleave(groups.group, dim=1) for part in (groups.scale, groups.middle)]
    return (groups.steps.float() - 2 ** (groups.bits - 1)) * wide[0] + wide[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_off_by_half_a_step_at_most(dtype: torch.dtype) -> None:
    given_weight = weight(48, 64, dtype)
    layer = Int8Linear.quantise(given_weight, None)
    exact = layer.steps.float() * layer.scale.float()[:, None]
    # The largest weight of a channel may be cut by what rounding its scale took away.
    slack = 0.5 + 127 * torch.finfo(dtype).eps
    assert ((exact - given_weight.float()).abs() <= slack * layer.scale.float()[:, None]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "group"), [(128, 64), (96, 32), (40, 8), (7, 1)])
def test_int4_is_off_by_half_a_step_of_its_group_at_most(dtype: torch.dtype, inputs: int, group: int) -> None:
    given_weight = weight(32, inputs, dtype)
    groups = GroupedWeight.quantise(given_weight)
    assert groups.group == group
    scale = groups.scale.repeat_interleave(group, dim=1)
    slack = 0.5 + 16 * torch.finfo(dtype).eps
    assert ((spread(groups) - given_weight.float()).abs() <= slack * scale + 1e-6).all()


def test_a_weight_that_is_all_the_same_is_kept() -> None:
    flat = torch.full((16, 64), 0.75)
    assert torch.equal(
        GroupedLinear.build(GroupedWeight.quantise(flat), None, torch.float32).dequantised(), flat
    )
    nothing = torch.zeros(16, 64)
    assert torch.equal(Int8Linear.quantise(nothing, None).dequantised(), nothing)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 48, 49, 130])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_few_rows_and_many_get_the_product_with_the_same_weight(
    kind: Any, rows: int, dtype: torch.dtype
) -> None:
    layer: Any = build_projection(weight(96, 128, dtype), weight(1, 96, dtype)[0], kind)
    x = weight(rows, 128, dtype, seed=1)
    exact = x.double() @ layer.dequantised().double().t() + layer.bias.double()
    # Sums of 128 products of order one.
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(layer(x).double(), exact, atol=tolerance, rtol=tolerance)


def test_the_packed_kernels_are_used_for_few_rows_and_only_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    if not packed_weights.has_int8(torch.device("cpu"), torch.bfloat16):
        pytest.skip("this torch has no packed kernels")
    used: list[str] = []
    for name in ("_weight_int8pack_mm", "_weight_int4pack_mm_for_cpu"):
        real = getattr(packed_weights._aten, name)
        monkeypatch.setattr(packed_weights._aten, name, lambda *a, n=name, r=real: used.append(n) or r(*a))
    for kind, few in (("int8", packed_weights.INT8_ROWS_MAX), ("int4", packed_weights.INT4_ROWS_MAX)):
        layer = build_projection(weight(64, 64, torch.bfloat16), None, kind)
        for rows, calls in ((few, 1), (few + 1, 0)):
            used.clear()
            layer(weight(rows, 64, torch.bfloat16))
            assert len(used) == calls, (kind, rows)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_without_packed_kernels_the_result_is_the_same(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given_weight, x = weight(64, 128, torch.bfloat16), weight(4, 128, torch.bfloat16, seed=1)
    fast = build_projection(given_weight, None, kind)(x)
    monkeypatch.setattr(packed_weights, "_aten", object())
    slow = build_projection(given_weight, None, kind)
    assert not isinstance(getattr(slow, "steps", None), PackedInt4)
    torch.testing.assert_close(slow(x).float(), fast.float(), atol=0.2, rtol=0.02)


def test_an_order_of_the_kernel_that_is_not_understood_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        _weight_int4pack_mm_for_cpu = None

        @staticmethod
        def _convert_weight_to_int4pack_for_cpu(steps: torch.Tensor, _: int) -> torch.Tensor:
            return (steps[:, ::2] << 4 | steps[:, 1::2]).to(torch.uint8)

    given_weight = weight(64, 64, torch.bfloat16)
    monkeypatch.setattr(packed_weights, "_aten", Odd())
    layer = GroupedLinear.build(GroupedWeight.quantise(given_weight), None, torch.bfloat16)
    assert isinstance(layer.steps, torch.Tensor)
    torch.testing.assert_close(
        layer.dequantised().float(), spread(GroupedWeight.quantise(given_weight)), atol=0.05, rtol=0.02
    )


@settings(max_examples=40, deadline=None)
@given(
    outputs=st.sampled_from([16, 32, 48, 64, 192]),
    inputs=st.sampled_from([32, 64, 96, 128]),
    seed=st.integers(0, 9),
)
def test_what_a_kernel_packs_reads_back(outputs: int, inputs: int, seed: int) -> None:
    steps = torch.randint(0, 16, (outputs, inputs), generator=torch.Generator().manual_seed(seed)).to(
        torch.uint8
    )
    made = PackedInt4.pack(steps, 32, torch.bfloat16)
    assert made is None or torch.equal(made.unpack(), steps)


def test_sizes_are_one_byte_and_half_of_one_and_the_scales() -> None:
    given_weight = weight(128, 256, torch.bfloat16)
    plain, int8, int4 = (build_projection(given_weight, None, kind) for kind in ("none", "int8", "int4"))
    assert plain.num_bytes == 2 * 128 * 256
    assert int8.num_bytes == 128 * 256 + 2 * 128
    assert int4.num_bytes == 128 * 256 // 2 + 4 * 128 * (256 // 64)
    assert StackedLinear(parts=(plain, int8)).num_bytes == plain.num_bytes + int8.num_bytes


def test_layers_that_cannot_be_joined_stand_side_by_side() -> None:
    parts = (PlainLinear(weight=weight(8, 16)), Int8Linear.quantise(weight(4, 16), None))
    x = weight(3, 16, seed=2)
    assert torch.equal(StackedLinear(parts=parts)(x), torch.cat([parts[0](x), parts[1](x)], dim=1))


TEXT = [5, 9, 200, 431, 77, 21, 300, 12] * 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "error_max", "agreement_min"), [("int8", 0.1, 0.7), ("int4", 1.0, 0.2)])
def test_a_quantised_model_stays_close_to_the_plain_one(
    kind: str,
    error_max: float,
    agreement_min: float,
    dtype: str,
    load: Callable[..., Engine],
    record_property: Callable[[str, object], None],
) -> None:
    """The error is a share of the spread of scores. Random weights lose more than trained ones: none is spare."""
    plain, small = (
        forced_logits(load("llama-gqa", dtype=dtype, quantization=quantization), TEXT)
        for quantization in ("none", kind)
    )
    error = ((small - plain).square().mean().sqrt() / plain.std()).item()
    agreement = (small.argmax(-1) == plain.argmax(-1)).float().mean().item()
    record_property("error", error)
    record_property("top1_agreement", agreement)
    assert error < error_max
    assert agreement >= agreement_min


def test_quantised_weights_take_the_memory_that_was_promised(load: Callable[..., Engine]) -> None:
    sizes = {}
    for kind in ("none", "int8", "int4"):
        engine: Any = load("llama-gqa", dtype="bfloat16", quantization=kind)
        sizes[kind] = engine._runner._decoder.linear_bytes
    assert sizes["none"] / sizes["int8"] == pytest.approx(2, rel=0.05)
    # A group of 64 or 32 has four bytes of scale and middle.
    assert 3.0 < sizes["none"] / sizes["int4"] < 3.7


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_quantised_model_gives_the_same_tokens_alone_and_in_a_batch_in_float32(
    kind: str, load: Callable[..., Engine], finish: Callable[..., Any]
) -> None:
    from tests.unit.workers.engine.model.test_decoder import greedy_requests

    together = finish(load("qwen3-gqa", quantization=kind, chunk_tokens=24), greedy_requests("batch"))
    engine = load("qwen3-gqa", quantization=kind)
    alone = [finish(engine, [request])[request.id].tokens for request in greedy_requests("alone")]
    assert alone == [answer.tokens for answer in together.values()]


def test_a_checkpoint_on_disk_is_not_changed(
    checkpoint: Callable[[str], Path], load: Callable[..., Engine]
) -> None:
    before = (checkpoint("llama-gqa") / "model.safetensors").read_bytes()
    load("llama-gqa", quantization="int4")
    assert (checkpoint("llama-gqa") / "model.safetensors").read_bytes() == before


def test_a_worker_hands_its_quantization_to_the_engine(checkpoint: Callable[[str], Path]) -> None:
    options = WorkerOptions(model=checkpoint("llama-gqa"), quantization="int4")
    assert options.engine_config().quantization == "int4"
    with pytest.raises(ConfigInvalid, match="quantization must be one of none, int8, int4"):
        EngineConfig(model=checkpoint("llama-gqa"), quantization="int3")  # type: ignore[arg-type]
