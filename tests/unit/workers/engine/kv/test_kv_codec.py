"""Quantised KV: its memory is what the formula says, its error is bounded, and a hit reads what a miss has read."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.workers.engine.conftest import greedy
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.checkpoint.rope_spec import RopeSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import ConfigInvalid
from workers.engine.kv.kv_codec import KVCodec, kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.engine.kv.pool_sizing import CPU_BYTES, pool_blocks
from workers.engine.request import Request

CPU = torch.device("cpu")
QUANTISED = ("int8", "int4", "k8v4")


def spec_of(head_dim: int = 128, kv_heads: int = 8, layers: int = 32) -> ModelSpec:
    return ModelSpec(
        architecture="llama",
        vocab_size=512,
        hidden_size=4096,
        intermediate_size=96,
        layers=layers,
        heads=kv_heads * 4,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=131_072,
        norm_eps=1e-6,
        rope=RopeSpec(),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,) * layers,
        tied_head=False,
        dtype="bfloat16",
        eos_ids=frozenset(),
    )


def store_of(codec: KVCodec, spec: ModelSpec, blocks: int = 5, block_size: int = 4) -> KVStore:
    return KVStore(spec, blocks=blocks, block_size=block_size, codec=codec, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", 131_072),
        ("float32", 262_144),
        ("int8", 2 * 32 * 8 * (128 + 2)),
        ("int4", 2 * 32 * 8 * (128 // 2 + 4 * 128 // 64)),
        ("k8v4", 32 * 8 * (128 + 2 + 128 // 2 + 4 * 128 // 64)),
    ],
)
def test_a_token_of_an_8b_model_takes_the_bytes_of_the_formula(name: Any, expected: int) -> None:
    assert expected == kv_codec(name, torch.bfloat16).bytes_per_token(spec_of())


@pytest.mark.parametrize("name", ["float32", "bfloat16", *QUANTISED])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
def test_the_allocated_bytes_are_those_of_the_formula(name: Any, head_dim: int) -> None:
    spec, codec = spec_of(head_dim, kv_heads=2, layers=3), kv_codec(name, torch.float32)
    store = store_of(codec, spec)
    assert store.num_bytes == 5 * 4 * codec.bytes_per_token(spec)
    assert store.bytes_per_block == 4 * codec.bytes_per_token(spec)


def test_a_quantised_cache_has_room_for_more_tokens(tmp_path: Any) -> None:
    def tokens(name: Any) -> int:
        config = EngineConfig(model=tmp_path, running_max=10**6, kv_dtype=name)
        codec = kv_codec(name, torch.bfloat16)
        return 16 * pool_blocks(config, spec_of(), context_length=131_072, codec=codec, device=CPU)

    assert tokens("auto") == CPU_BYTES // 131_072 - 16
    assert tokens("int8") / tokens("auto") == pytest.approx(1.97, abs=0.01)
    assert tokens("int4") / tokens("auto") == pytest.approx(3.56, abs=0.02)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("head_dim", [16, 80, 128])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_no_value_is_off_by_more_than_half_a_step(name: Any, head_dim: int, size: float) -> None:
    torch.manual_seed(0)
    rows = torch.randn(50, 2, head_dim) * size
    codec = kv_codec(name, torch.float32)
    for side in (codec.key, codec.value):
        parts = side.encode(rows)
        read = side.decode(parts, torch.float32)
        # The scale, as rounded to half precision, is what a step is worth.
        step = parts[1].float().repeat_interleave(head_dim // parts[1].shape[-1], dim=-1)
        # The ends of the range may be cut by what the rounding of scale and minimum lost.
        lost = rows.abs().amax() * 2e-3
        assert ((read - rows).abs() <= step / 2 + lost).all()


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-9, 1e6])
def test_rows_of_one_value_neither_divide_by_zero_nor_overflow(name: Any, value: float) -> None:
    codec = kv_codec(name, torch.float32)
    rows = torch.full((3, 2, 64), value)
    for side in (codec.key, codec.value):
        read = side.decode(side.encode(rows), torch.float32)
        assert read.isfinite().all()
        assert (read - rows).abs().max() <= (abs(value) * 1e-2 if abs(value) < 60_000 else abs(value)) + 1e-8


@pytest.mark.parametrize("name", ["float32", "float16", *QUANTISED])
def test_what_is_written_is_gathered_as_it_will_always_be_read(name: Any) -> None:
    torch.manual_seed(0)
    store = store_of(kv_codec(name, torch.float32), spec_of(64, kv_heads=2, layers=2))
    key, value = torch.randn(4, 2, 64), torch.randn(4, 2, 64)
    store.write(1, torch.arange(8, 12), key, value)
    for gathered, fresh in zip(store.gather(1, torch.tensor([2])), store.as_read(key, value), strict=True):
        assert torch.equal(gathered, fresh)


@pytest.mark.parametrize("name", ["float32", "bfloat16", *QUANTISED])
def test_a_block_travels_as_bytes_and_is_copied_whole(name: Any) -> None:
    torch.manual_seed(0)
    spec, codec = spec_of(80, kv_heads=2, layers=3), kv_codec(name, torch.float32)
    store, other = store_of(codec, spec), store_of(codec, spec)
    for layer in range(3):
        store.write(layer, torch.arange(4, 12), torch.randn(8, 2, 80), torch.randn(8, 2, 80))
    content = store.export([2, 1])
    assert content.shape == (2, store.bytes_per_block)
    other.load([4, 3], content)
    store.copy(1, 4)
    for layer in range(3):
        for mine, theirs in ((2, 4), (1, 3)):
            for a, b in zip(
                store.gather(layer, torch.tensor([mine])),
                other.gather(layer, torch.tensor([theirs])),
                strict=True,
            ):
                assert torch.equal(a, b)
        for a, b in zip(*(store.gather(layer, torch.tensor([n])) for n in (1, 4)), strict=True):
            assert torch.equal(a, b)


def test_an_unknown_kv_dtype_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigInvalid, match="kv_dtype must be one of auto"):
        EngineConfig(model=tmp_path, kv_dtype="int3")  # type: ignore[arg-type]


def requests(name: str, count: int = 12, length: int = 40) -> list[Request]:
    chance = random.Random(5)
    prompts = [[chance.randrange(4, 500) for _ in range(length)] for _ in range(count)]
    return [Request(id=f"{name}{n}", prompt=p, params=greedy(12)) for n, p in enumerate(prompts)]


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("budget", [7, 512])
def test_a_hit_gives_the_tokens_of_a_miss_however_the_prompt_was_cut(
    name: str, budget: int, load: Callable[..., Engine], finish: Callable[..., Any]
) -> None:
    whole = [a.tokens for a in finish(load(kv_dtype=name), requests("whole")).values()]
    engine = load(kv_dtype=name, chunk_tokens=budget, block_size=4)
    for visit in ("cold", "warm"):
        answers = finish(engine, requests(visit)).values()
        assert whole == [answer.tokens for answer in answers]
    assert all(answer.cached_tokens == 36 for answer in answers)


def test_more_bits_choose_more_often_as_all_bits_do(
    load: Callable[..., Engine], finish: Callable[..., Any]
) -> None:
    def firsts(name: str) -> list[int]:
        answers = finish(load(kv_dtype=name, kv_tokens=4096), requests("a", count=40)).values()
        return [answer.tokens[0] for answer in answers]

    exact = firsts("auto")
    agreed = {name: sum(a == b for a, b in zip(exact, firsts(name), strict=True)) for name in QUANTISED}
    # A tiny random model, heads of 16: far more sensitive than a trained one. The order is what matters.
    assert agreed["int8"] >= 34
    assert agreed["int8"] > agreed["k8v4"] > agreed["int4"] >= 12
