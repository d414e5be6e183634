"""Attention by Triton kernels that read the KV cache through block tables: nothing is gathered, nothing padded.

    begin   spans -> tiles, and one index tensor for all layers     (`tiles`, `step_index`)
    attend  new keys and values are stored, then at most two launches: short spans, split over their contexts
            where that keeps the device busy (`kernels.paged_decode`), and prompt chunks (`kernels.paged_prefill`)

Grouped-query heads, windows, trees of drafts and every codec of the KV cache are computed in the kernels. The
results are those of the SDPA backend, which is the reference, but for rounding.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionSpan, Window
from workers.engine.attention.kernels.paged_decode import decode_kernel, merge_kernel
from workers.engine.attention.kernels.paged_prefill import prefill_kernel
from workers.engine.attention.layer_cache import LayerCache, layer_caches
from workers.engine.attention.step_index import StepIndex, TileGroup, step_index
from workers.engine.attention.store_backend import StoreBackend
from workers.engine.attention.workspace import Workspace
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.kv.kv_store import KVStore

DECODE_OPTIONS = {"num_warps": 4, "num_stages": 3}
PREFILL_OPTIONS = {"num_warps": 4, "num_stages": 2}


class TritonBackend(StoreBackend):
    """An AttentionBackend of Triton kernels over a KVStore, on the store's device."""

    def __init__(self, store: KVStore, spec: ModelSpec) -> None:
        """Create a backend for the model `spec`, which the keys and values in the store belong to."""
        super().__init__(store)
        self._windows = spec.windows
        self._group, self._kv_heads = spec.heads // spec.kv_heads, spec.kv_heads
        self._caches = layer_caches(store, spec)
        self._workspace = Workspace(spec, store.device)

    def begin(self, spans: Sequence[AttentionSpan]) -> "TritonAttentionStep":
        """Return a step with the index tensors for all layers."""
        index = step_index(
            spans,
            self._slots(spans),
            block_size=self._store.block_size,
            group=self._group,
            kv_heads=self._kv_heads,
            windows=sorted(set(self._windows), key=lambda window: window or 0),
            device=self._store.device,
        )
        return self.step_of(index)

    def step_of(self, index: StepIndex) -> "TritonAttentionStep":
        """Return a step over an index, the tensors of which may be filled later."""
        return TritonAttentionStep(self._store, self._windows, self._caches, self._workspace, index)


class TritonAttentionStep:
    """The index tensors of one step, used by every layer."""

    def __init__(
        self,
        store: KVStore,
        windows: Sequence[Window],
        caches: Sequence[LayerCache],
        workspace: Workspace,
        index: StepIndex,
    ) -> None:
        self._store = store
        self._windows = windows
        self._caches = caches
        self._workspace = workspace
        self._index = index

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store the keys and values of one layer, and return the attention output, shaped as `query`."""
        index, cache = self._index, self._caches[layer]
        self._store.write(layer, index.slots, key, value)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if index.short:
            self._decode(output, query, index.short, index.tree_bits.get(self._windows[layer]), cache)
        if index.long:
            self._prefill(output, query, index.long, cache)
        return output

    def _decode(
        self, output: Tensor, query: Tensor, group: TileGroup, bits: Tensor | None, cache: LayerCache
    ) -> None:
        index, constants, grid = self._index, cache.constants, (len(group.tiles), cache.constants["KV_HEADS"])
        partial, logs = self._workspace.partial, self._workspace.logs
        decode_kernel[*grid, group.splits](
            output,
            query,
            query.stride(0),
            query.stride(1),
            group.tiles,
            index.positions,
            index.positions if bits is None else bits,
            index.blocks,
            partial,
            logs,
            group.splits,
            _scale(query),
            *cache.parts,
            **constants,
            TREE=bits is not None,
            ROWS=group.rows,
            SPLIT=group.splits > 1,
            **DECODE_OPTIONS,
        )
        if group.splits > 1:
            shape = {name: constants[name] for name in ("KV_HEADS", "GROUP", "HEAD_DIM", "COLUMNS")}
            merge_kernel[grid](output, group.tiles, partial, logs, group.splits, **shape, ROWS=group.rows)

    def _prefill(self, output: Tensor, query: Tensor, group: TileGroup, cache: LayerCache) -> None:
        prefill_kernel[len(group.tiles), cache.constants["KV_HEADS"]](
            output,
            query,
            query.stride(0),
            query.stride(1),
            group.tiles,
            self._index.positions,
            self._index.blocks,
            _scale(query),
            *cache.parts,
            **cache.constants,
            ROWS=group.rows,
            **PREFILL_OPTIONS,
        )


def _scale(query: Tensor) -> float:
    """Return what scores are multiplied by, in units of log2."""
    return math.log2(math.e) / math.sqrt(query.shape[-1])
