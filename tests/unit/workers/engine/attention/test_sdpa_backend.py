"""Spans that are attended to together give what each gives alone: short and long, with and without a window."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from workers.engine.attention import sdpa_backend
from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.attention.sdpa_backend import BATCHED_SPAN_TOKENS_MAX, SdpaBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore

SIZE, BLOCKS = 4, 200
CONFIG: dict[str, Any] = {
    "model_type": "mistral",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}


def backend(kv_heads: int, window: int | None) -> SdpaBackend:
    spec = ModelSpec.from_config(CONFIG | {"num_key_value_heads": kv_heads, "sliding_window": window}, {})
    codec = kv_codec("auto", torch.float32)
    store = KVStore(
        spec,
        blocks=BLOCKS,
        block_size=SIZE,
        codec=codec,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    noise = torch.Generator().manual_seed(1)
    for part in (*store.keys, *store.values):
        part.normal_(generator=noise)
    return SdpaBackend(store, spec)


def spans(shapes: list[tuple[int, int]]) -> list[AttentionSpan]:
    """Of (start, count), each in blocks of its own, in no order."""
    free = list(range(1, BLOCKS))
    random.Random(2).shuffle(free)
    made = []
    for start, count in shapes:
        blocks = [free.pop() for _ in range(-(-(start + count) // SIZE))]
        made.append(AttentionSpan(start=start, count=count, blocks=blocks))
    return made


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 6])
def test_spans_in_one_step_attend_to_what_each_attends_to_alone(kv_heads: int, window: int | None) -> None:
    shapes = [
        (9, 1),
        (1, 1),
        (30, 1),
        (7, 3),
        (40, 3),
        (4, 5),
        (8, 3),
        (11, BATCHED_SPAN_TOKENS_MAX),
        (2, BATCHED_SPAN_TOKENS_MAX),
        (5, BATCHED_SPAN_TOKENS_MAX + 1),
        (0, 6),
    ]
    given = spans(shapes)
    tokens = sum(count for _, count in shapes)
    noise = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(tokens, heads, 8, generator=noise) for heads in (4, kv_heads, kv_heads))
    together = backend(kv_heads, window).begin(given).attend(0, query, key, value)
    alone: list[Tensor] = []
    first = 0
    for span in given:
        rows = slice(first, first + span.count)
        # One token after the other, so that nothing is batched or masked but by position.
        apart = backend(kv_heads, window)
        for offset in range(span.count):
            one = AttentionSpan(start=span.start + offset, count=1, blocks=span.blocks)
            at = slice(rows.start + offset, rows.start + offset + 1)
            alone.append(apart.begin([one]).attend(0, query[at], key[at], value[at]))
        first = rows.stop
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


class CountingStore(KVStore):
    """A KV store that counts the blocks that were copied out of it."""

    gathered = 0

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        self.gathered += len(blocks)
        return super().gather(layer, blocks)


def test_one_long_context_among_short_ones_is_not_copied_for_each_of_them() -> None:
    spec = ModelSpec.from_config(CONFIG | {"num_key_value_heads": 2, "sliding_window": None}, {})
    store = CountingStore(
        spec,
        blocks=BLOCKS,
        block_size=SIZE,
        codec=kv_codec("auto", torch.float32),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    given = spans([(5, 1)] * 31 + [(399, 1)])
    query, key, value = (torch.randn(len(given), heads, 8) for heads in (4, 2, 2))
    SdpaBackend(store, spec).begin(given).attend(0, query, key, value)
    needed = sum(len(span.blocks) for span in given)
    assert store.gathered == needed == 31 * 2 + 100


def test_no_batch_copies_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def gather(store: KVStore, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(blocks))
        return plain(store, layer, blocks)

    plain = KVStore.gather
    monkeypatch.setattr(KVStore, "gather", gather)
    block_bytes = 2 * SIZE * 2 * 8 * 4
    monkeypatch.setattr(sdpa_backend, "GATHER_BYTES_MAX", 9 * block_bytes)
    given = spans([(13, 1)] * 10 + [(60, 1)])
    query, key, value = (torch.randn(len(given), heads, 8) for heads in (4, 2, 2))
    backend(2, None).begin(given).attend(0, query, key, value)
    assert sizes == [8] * 5 + [16]
