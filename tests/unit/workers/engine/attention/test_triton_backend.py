"""The kernels give what the SDPA backend gives: any spans, any heads, windows, trees and codecs of the KV cache."""

import random
from dataclasses import dataclass
from typing import Any, get_args
from unittest.mock import patch

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.workers.engine.attention.kernel_device import DEVICE
from workers.engine.attention import tiles
from workers.engine.attention.attention_backend import AttentionBackend, AttentionSpan
from workers.engine.attention.sdpa_backend import SdpaBackend
from workers.engine.attention.triton_backend import TritonBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import KvDtype
from workers.engine.draft_tree import DraftTree
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore

BLOCKS = 300
TREES = (
    DraftTree((-1, -1, 0, 0, 2)),
    DraftTree((-1, 0, 1)),
    DraftTree((-1, -1, -1, 0, 1, 1, 5)),
)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@dataclass(frozen=True, kw_only=True)
class Case:
    shapes: list[tuple[int, int]]
    """Start and count of each span."""
    trees: list[DraftTree]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 4
    window: int | None = None
    kv_dtype: KvDtype = "auto"
    dtype: torch.dtype = torch.float32

    @property
    def spec(self) -> ModelSpec:
        config: dict[str, Any] = {
            "model_type": "mistral",
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "sliding_window": self.window,
            "vocab_size": 64,
            "max_position_embeddings": 512,
        }
        return ModelSpec.from_config(config, {})

    def backend(self, kind: type[SdpaBackend] | type[TritonBackend]) -> AttentionBackend:
        """A backend over a store in which every slot has a key and a value, the same in each store."""
        codec = kv_codec(self.kv_dtype, self.dtype)
        store = KVStore(
            self.spec,
            blocks=BLOCKS,
            block_size=self.block_size,
            codec=codec,
            dtype=self.dtype,
            device=DEVICE,
        )
        slots = torch.arange(BLOCKS * self.block_size, device=DEVICE)
        shape = (len(slots), self.kv_heads, self.head_dim)
        for layer in range(self.spec.layers):
            store.write(
                layer, slots, *(noise(shape, self.dtype, seed) for seed in (2 * layer, 2 * layer + 1))
            )
        return kind(store, self.spec)

    def spans(self) -> list[AttentionSpan]:
        """The spans with blocks of their own, in no order; those before every window are given back."""
        free = list(range(1, BLOCKS))
        random.Random(2).shuffle(free)
        spans = [self._span(start, count, None, free) for start, count in self.shapes]
        return spans + [self._span(9 + n, 1 + len(t.parents), t, free) for n, t in enumerate(self.trees)]

    def _span(self, start: int, count: int, tree: DraftTree | None, free: list[int]) -> AttentionSpan:
        blocks = [free.pop() for _ in range(-(-(start + count) // self.block_size))]
        if self.window is not None:
            gone = max(0, start - self.window + 1) // self.block_size
            blocks[:gone] = [0] * gone
        return AttentionSpan(start=start, count=count, blocks=blocks, tree=tree)


def noise(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device=DEVICE, dtype=dtype)


def both(case: Case) -> list[Tensor]:
    spans = case.spans()
    tokens = sum(span.count for span in spans)
    # Query and key as the decoder gives them: parts of one tensor.
    heads = noise((tokens, case.heads + case.kv_heads, case.head_dim), case.dtype, 5)
    value = noise((tokens, case.kv_heads, case.head_dim), case.dtype, 6)
    return [
        case.backend(kind).begin(spans).attend(1, heads[:, : case.heads], heads[:, case.heads :], value)
        for kind in (SdpaBackend, TritonBackend)
    ]


def check(case: Case) -> None:
    expected, found = both(case)
    tolerance = TOLERANCE[case.dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads = draw(st.sampled_from((1, 2)))
    return Case(
        shapes=draw(
            st.lists(st.tuples(st.integers(0, 70), st.sampled_from((1, 1, 2, 5, 40))), min_size=1, max_size=4)
        ),
        trees=draw(st.lists(st.sampled_from(TREES), max_size=1)),
        heads=kv_heads * draw(st.sampled_from((1, 3, 4))),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from((8, 16, 24, 80))),
        block_size=draw(st.sampled_from((1, 4, 16))),
        window=draw(st.sampled_from((None, None, 1, 6, 30))),
        kv_dtype=draw(st.sampled_from(get_args(KvDtype))),
        dtype=draw(st.sampled_from(tuple(TOLERANCE))),
    )


# Without the phase that explains a failure: it traces every line of the interpreter.
@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(cases(), st.sampled_from((1, 16, 256)))
def test_any_step_gives_what_the_sdpa_backend_gives(case: Case, split_keys: int) -> None:
    with patch.object(tiles, "SPLIT_KEYS_MIN", split_keys):
        check(case)


@pytest.mark.parametrize("kv_dtype", get_args(KvDtype))
def test_every_codec_of_the_kv_cache_is_read_in_both_kernels(kv_dtype: KvDtype) -> None:
    check(Case(shapes=[(33, 1), (20, 40)], trees=[], kv_dtype=kv_dtype, head_dim=128, kv_heads=1))


@pytest.mark.parametrize("window", [None, 7, 40])
def test_a_long_context_among_short_ones_is_split_and_merged(window: int | None) -> None:
    case = Case(shapes=[(3, 1), (130, 1), (70, 4), (0, 1)], trees=[TREES[0]], window=window)
    with patch.object(tiles, "SPLIT_KEYS_MIN", 16):
        check(case)


def test_more_query_heads_to_a_key_head_than_a_tile_has_rows() -> None:
    check(Case(shapes=[(9, 1), (5, 3), (0, 4)], trees=[], heads=72, kv_heads=1))


def test_what_is_stored_is_what_the_sdpa_backend_stores() -> None:
    case = Case(shapes=[(9, 3), (0, 6)], trees=[], kv_dtype="int8")
    spans, stored = case.spans(), []
    for kind in (SdpaBackend, TritonBackend):
        backend = case.backend(kind)
        rows = [noise((9, heads, 8), case.dtype, 7) for heads in (4, 2, 2)]
        backend.begin(spans).attend(0, rows[0], rows[1], rows[2])
        backend.copy_blocks([(spans[1].blocks[0], 299)])
        backend.move_tokens(spans[0].blocks, [(11, 9)])
        stored.append([*backend._store.keys, *backend._store.values])  # type: ignore[attr-defined]
    assert all(torch.equal(one, other) for one, other in zip(*stored, strict=True))
