"""The stored keys and values of one layer as arguments of a kernel: tensors, and constants to compile it for."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from workers.engine.attention.tiles import power_of_two
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.kv.kv_codec import Int4Codec, Int8Codec, PlainCodec, SideCodec, scale_group
from workers.engine.kv.kv_store import KVStore

_CODECS: dict[type, int] = {PlainCodec: 0, Int8Codec: 1, Int4Codec: 2}
"""The numbers that `kernels.stored_heads` has for the codecs."""
_COLUMNS_MIN = 16
"""Numbers of a head that tensor cores multiply at least."""
_KEY_BYTES = 16 << 10
"""Bytes of the keys of one pass of a kernel's loop, while the keys and values of the next pass are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """The arguments of a kernel for one layer."""

    parts: tuple[Tensor, ...]
    """Numbers, scales and minima of keys, then of values; a part that the codec lacks is the numbers again."""
    constants: dict[str, Any]
    """Named as the kernels name them."""


def layer_caches(store: KVStore, spec: ModelSpec) -> list[LayerCache]:
    """Return the arguments for each layer of a model."""
    columns = max(_COLUMNS_MIN, power_of_two(spec.head_dim))
    constants = {
        "KEY_CODEC": codec_number(store.codec.key),
        "VALUE_CODEC": codec_number(store.codec.value),
        "BLOCK_SIZE": store.block_size,
        "KV_HEADS": spec.kv_heads,
        "GROUP": spec.heads // spec.kv_heads,
        "HEAD_DIM": spec.head_dim,
        "SCALE_GROUP": scale_group(spec.head_dim),
        "COLUMNS": columns,
        "KEYS": max(16, min(64, _KEY_BYTES // (columns * store.dtype.itemsize))),
    }
    return [
        LayerCache(
            parts=tuple(part[layer] for side in (store.keys, store.values) for part in _three(side)),
            constants=constants | {"WINDOW": window or 0},
        )
        for layer, window in enumerate(spec.windows)
    ]


def codec_number(codec: SideCodec) -> int:
    """Return the number of a codec in the kernels."""
    return _CODECS[type(codec)]


def _three(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (*parts, *[parts[0]] * (3 - len(parts)))
