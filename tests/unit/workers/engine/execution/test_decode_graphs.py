"""Decode steps are replayed in buckets: same tokens, and padding touches only the spare block."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.fakes.tiny_lora import build_lora
from tests.unit.workers.engine.attention.kernel_device import DEVICE
from tests.unit.workers.engine.attention.test_triton_engine import requests
from tests.unit.workers.engine.conftest import finish_all
from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.attention.fixed_decode import FixedDecode, fixed_numbers
from workers.engine.attention.triton_backend import TritonBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.config.lora_config import LoraConfig
from workers.engine.draft_tree import DraftTree
from workers.engine.engine import Engine
from workers.engine.engine_parts import load_engine_parts
from workers.engine.errors import StepFailed
from workers.engine.execution.cuda_capture import CudaCapture
from workers.engine.execution.decode_graphs import Compute, DecodeGraphs, bucket_sizes
from workers.engine.execution.graph_building import graph_rows
from workers.engine.execution.graph_memory import graph_bytes
from workers.engine.execution.model_runner import ModelRunner

SIZE = 4


class Recorder:
    """Stands in for CUDA graphs on the CPU: a replay computes again, into the same tensor."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        """The rows of each replay."""

    def __call__(self, compute: Compute) -> Compute:
        result = compute()

        def replay() -> Tensor:
            self.rows.append(len(result))
            return result.copy_(compute())

        return replay


def fixed(rows: int, context_length: int = 64) -> FixedDecode:
    return FixedDecode(
        rows=rows, context_length=context_length, block_size=SIZE, group=2, kv_heads=2, device=DEVICE
    )


def span(start: int, blocks: list[int]) -> AttentionSpan:
    return AttentionSpan(start=start, count=1, blocks=blocks)


@given(st.integers(1, 600))
def test_buckets_reach_from_one_row_to_all_sequences_and_no_further_than_the_bound(running_max: int) -> None:
    buckets = bucket_sizes(running_max)
    assert list(buckets) == sorted(set(buckets))
    assert (buckets[0], buckets[-1]) == (1, min(running_max, 256))
    # No step is padded to more than twice its rows, or to the next eight.
    assert all(after <= 2 * before or after - before <= 8 for before, after in pairwise(buckets))


def test_the_buckets_of_the_default_batch() -> None:
    assert bucket_sizes(32) == (1, 2, 4, 8, 16, 24, 32)


def test_graphs_are_for_triton_on_cuda_unless_they_are_switched_off(tmp_path: Path) -> None:
    config, cuda = EngineConfig(model=tmp_path, running_max=4), torch.device("cuda")
    assert graph_rows(config, "triton", cuda) == (1, 2, 4)
    assert graph_rows(config, "sdpa", cuda) == ()
    assert graph_rows(config, "triton", torch.device("cpu")) == ()
    assert graph_rows(replace(config, cuda_graphs=False), "triton", cuda) == ()


def test_rows_of_padding_read_and_write_the_first_token_of_the_spare_block() -> None:
    inputs = fixed(4)
    inputs.fill([span(9, [3, 7, 5]), span(2, [6])])
    index = inputs.index(4)
    assert index.slots.tolist() == [5 * SIZE + 1, 6 * SIZE + 2, 0, 0]
    assert index.positions.tolist() == [9, 2, 0, 0]
    assert index.short is not None
    rows, counts, starts, ends, tables = index.short.tiles.T.tolist()
    assert (rows, counts, starts, ends) == ([0, 1, 2, 3], [1, 1, 1, 1], [9, 2, 0, 0], [10, 3, 1, 1])
    assert [index.blocks[table].item() for table in tables] == [3, 6, 0, 0]


def test_a_smaller_bucket_is_a_view_of_the_same_tensors() -> None:
    inputs = fixed(8)
    small, large = inputs.index(2), inputs.index(8)
    inputs.fill([span(5, [1, 2])])
    assert torch.equal(small.slots, large.slots[:2])
    assert small.blocks.data_ptr() == large.blocks.data_ptr()


def test_rows_with_full_contexts_fit_and_one_more_is_refused() -> None:
    inputs = fixed(2, context_length=16)
    full = [span(15, [1, 2, 3, 4]), span(15, [5, 6, 7, 8])]
    inputs.fill(full)
    with pytest.raises(StepFailed, match="larger than its CUDA graph"):
        inputs.fill([*full, span(0, [9])])


@pytest.fixture
def engine(checkpoint: Callable[[str], Path]) -> Callable[..., Engine]:
    """An engine of which the decode steps are replayed."""

    def build(
        capture: Callable[[Compute], Compute], buckets: tuple[int, ...] = (1, 2, 4), lora: Path | None = None
    ) -> Engine:
        config = EngineConfig(
            model=checkpoint("qwen2-window"),
            seed=0,
            device=DEVICE.type,
            attention_backend="triton",
            cuda_graphs=False,
            kv_tokens=1024,
            chunk_tokens=16,
            lora=LoraConfig(adapters=(("adapted", lora),) if lora is not None else ()),
        )
        parts = load_engine_parts(config)
        assert isinstance(parts.runner, ModelRunner)
        assert parts.store is not None
        decoder = parts.runner._decoder
        backend = TritonBackend(parts.store, decoder.spec)
        inputs = FixedDecode(
            rows=max(buckets),
            context_length=parts.info.context_length,
            block_size=config.block_size,
            group=decoder.spec.heads // decoder.spec.kv_heads,
            kv_heads=decoder.spec.kv_heads,
            device=DEVICE,
        )
        graphs = DecodeGraphs(decoder, backend, inputs, buckets, capture, DEVICE)
        runner = ModelRunner(decoder, backend, DEVICE, loras=parts.runner._loras, graphs=graphs)
        return Engine(config, replace(parts, runner=runner))

    return build


def test_replayed_steps_give_the_tokens_of_computed_ones(
    engine: Callable[..., Engine], load: Callable[..., Engine]
) -> None:
    recorder = Recorder()
    found = finish_all(engine(recorder), requests("a"))
    expected = finish_all(
        load("qwen2-window", kv_tokens=1024, chunk_tokens=16, device=DEVICE.type, attention_backend="sdpa"),
        requests("a"),
    )
    assert [a.tokens for a in found.values()] == [a.tokens for a in expected.values()]
    assert recorder.rows
    assert {*recorder.rows} <= {1, 2, 4}


def test_steps_with_adapters_are_computed(
    engine: Callable[..., Engine],
    load: Callable[..., Engine],
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    lora = build_lora(tmp_path / "lora", checkpoint("qwen2-window"))
    asked = [replace(request, lora="adapted") for request in requests("a")]
    recorder = Recorder()
    found = finish_all(engine(recorder, lora=lora), asked)
    expected = finish_all(
        load(
            "qwen2-window",
            kv_tokens=1024,
            chunk_tokens=16,
            device=DEVICE.type,
            attention_backend="sdpa",
            lora=LoraConfig(adapters=(("adapted", lora),)),
        ),
        asked,
    )
    assert [a.tokens for a in found.values()] == [a.tokens for a in expected.values()]
    assert recorder.rows == []


def test_only_steps_that_decode_one_token_of_few_enough_sequences_are_replayed() -> None:
    graphs = DecodeGraphs.__new__(DecodeGraphs)
    graphs._buckets = [1, 2, 4]
    one = span(5, [1, 2])
    assert [graphs.bucket([one] * rows) for rows in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, None]
    verified = AttentionSpan(start=5, count=3, blocks=[1, 2], tree=DraftTree((-1, -1)))
    assert graphs.bucket([one, verified]) is None
    assert graphs.bucket([one, AttentionSpan(start=0, count=7, blocks=[1, 2])]) is None


def test_the_plan_of_graphs_grows_with_the_largest_bucket_and_is_nothing_without_them(
    checkpoint: Callable[[str], Path],
) -> None:
    spec = ModelSpec.from_directory(checkpoint("llama-gqa"))
    none, few, many = (
        graph_bytes(spec, buckets, context_length=512, block_size=SIZE, dtype=torch.float32)
        for buckets in ((), (1, 2), (1, 2, 200))
    )
    assert none == 0 < few
    assert many - few > 8 * (fixed_numbers(200, 512, SIZE) - fixed_numbers(2, 512, SIZE))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
def test_captured_graphs_give_the_tokens_of_computed_steps(
    engine: Callable[..., Engine], load: Callable[..., Engine]
) -> None:
    found = finish_all(engine(CudaCapture()), requests("a"))
    plain = load("qwen2-window", kv_tokens=1024, chunk_tokens=16, device="cuda", cuda_graphs=False)
    expected = finish_all(plain, requests("a"))
    assert [a.tokens for a in found.values()] == [a.tokens for a in expected.values()]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
def test_an_engine_on_cuda_has_the_kernels_and_graphs_by_itself(load: Callable[..., Engine]) -> None:
    engine = load("llama-gqa", device="cuda", kv_tokens=1024)
    assert (engine.info.attention_backend, engine.info.graph_rows) == ("triton", bucket_sizes(32))
    assert all(len(answer.tokens) == 4 for answer in finish_all(engine, requests("a")).values())
