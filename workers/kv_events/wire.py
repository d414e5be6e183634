"""The wire format of KV events, as vLLM and SGLang write them: three frames, the last one msgpack.

    frames   topic | sequence, 8 bytes big-endian | payload
    payload  [seconds since 1970, [event, ...], data-parallel rank]        the rank may be missing

An event is a map with `type` and its fields, or, from older engines, an array that begins with the type. Hashes are
unsigned (vLLM), signed (SGLang) or bytes; all become 0 <= h < 2**64. Unknown events and fields are ignored: newer
engines may send more.
"""

from array import array
from collections.abc import Sequence
from math import isfinite
from typing import Any, cast

import msgspec

from radix_cache.events import GPU, BlocksRemoved, BlocksStored, CacheCleared, Event, EventBatch

STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")
MAIN_ATTENTION = ("full_attention", "mla_attention", "sink_full_attention")
"""Kinds of KV cache groups that keep whole prefixes, as vLLM names them.

The other kinds (sliding window, chunked, Mamba) keep only the end of a prompt: their blocks do not show which
prefixes are cached.
"""

GROUPS_MAX = 256
"""Largest number of KV cache groups that is accepted."""

MEDIA = frozenset({"GPU", "CPU", "CPU_PINNED", "HOST", "DISK", "STORAGE", "EXTERNAL"})
OTHER = "OTHER"
"""The medium recorded for every other one, since state is kept for each medium, group and page."""

U64 = 2**64

_decoder = msgspec.msgpack.Decoder()


class EventsUnreadable(ValueError):
    """These frames are not a batch of KV events."""


def decode_batch(frames: Sequence[bytes]) -> EventBatch:
    """Decode a message of the publisher, or a reply of the replay socket. Raises EventsUnreadable."""
    try:
        sequence, payload = frames[-2], frames[-1]
        at, events, *rest = _decoder.decode(payload)
        if len(sequence) != 8 or not isfinite(at):
            raise ValueError("the sequence number must have eight bytes, and the time be finite")
        return EventBatch(
            sequence=int.from_bytes(sequence, "big"),
            events=tuple(event for raw in events if (event := _event(raw)) is not None),
            rank=next((int(rank) for rank in rest if rank is not None), 0),
            at=float(at),
        )
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, msgspec.MsgspecError) as err:
        raise EventsUnreadable(str(err)) from err


def _event(raw: Any) -> Event | None:
    if isinstance(raw, dict):
        kind, fields = raw.get("type"), raw
    else:
        kind, *values = raw
        names = STORED_FIELDS if kind == "BlockStored" else REMOVED_FIELDS
        fields = dict(zip(names, values, strict=False))
    if kind == "BlockStored":
        return _stored(fields)
    if kind == "BlockRemoved":
        return BlocksRemoved(
            hashes=_hashes(fields["block_hashes"]), medium=_medium(fields), group=_group(fields)
        )
    return CacheCleared() if kind == "AllBlocksCleared" else None


def _stored(fields: dict[str, Any]) -> BlocksStored:
    tokens: Sequence[Any] = fields.get("token_ids") or ()
    hashes = _hashes(fields["block_hashes"])
    whole = len(hashes)
    parent, size = fields.get("parent_block_hash"), int(fields["block_size"])
    group, kind = _group(fields), fields.get("kv_cache_spec_kind")
    # Pairs of tokens (Eagle) do not describe a prefix, nor do blocks some of which have no hash.
    odd = bool(tokens) and not isinstance(tokens[0], int)
    partial = odd or (bool(tokens) and len(tokens) != whole * size)
    own = _pages_of_text(fields, whole)
    if own < whole:
        hashes, tokens = hashes[:own], tokens[: own * size]
    return BlocksStored(
        hashes=hashes,
        parent=None if parent is None else _hash(parent),
        tokens=array("I", () if partial else tokens),
        page_size=size,
        salt=_salt(fields),
        adapter=str(fields.get("lora_name") or ""),
        medium=_medium(fields),
        partial=partial,
        group=group,
        # Without a kind the first group is the only one, or the main one.
        main=kind in MAIN_ATTENTION or (kind is None and not group),
    )


def _salt(fields: dict[str, Any]) -> str:
    """Return the cache salt. SGLang has a field for it; vLLM has it in the extra keys of the first block."""
    if fields.get("cache_salt"):
        return str(fields["cache_salt"])
    extra = fields.get("extra_keys") or ()
    adapter = fields.get("lora_name")
    for key in extra[0] if extra and extra[0] else ():
        if isinstance(key, str) and key != adapter:
            return key
        if isinstance(key, (list, tuple)) and len(key) == 2 and key[0] == "cache_salt":
            return str(key[1])
    return ""


def _group(fields: dict[str, Any]) -> int | None:
    group = fields.get("group_idx")
    if group is None:
        return None
    if not 0 <= int(group) < GROUPS_MAX:
        raise ValueError("the group number is too large")
    return int(group)


def _pages_of_text(fields: dict[str, Any], pages: int) -> int:
    """Return how many leading pages are described by tokens alone.

    They end before an image or prompt embeddings, which are in the extra keys.
    """
    extra, adapter = fields.get("extra_keys") or (), fields.get("lora_name")
    for at, keys in enumerate(extra):
        for key in keys or ():
            tagged = isinstance(key, (list, tuple)) and len(key) > 0 and key[0] in ("lora", "cache_salt")
            salt = isinstance(key, str) and not at and fields.get("parent_block_hash") is None
            if not (tagged or salt or key == adapter):
                return min(at, pages)
    return pages


def _medium(fields: dict[str, Any]) -> str:
    medium = str(fields.get("medium") or GPU).upper()
    return medium if medium in MEDIA else OTHER


def _hashes(raw: Sequence[int | bytes]) -> tuple[int, ...]:
    try:
        return tuple(array("Q", cast(Sequence[int], raw)))  # For vLLM's numbers, in a tenth of the time.
    except (TypeError, OverflowError):
        return tuple(map(_hash, raw))


def _hash(raw: int | bytes) -> int:
    if isinstance(raw, bytes):
        return int.from_bytes(raw[-8:], "big")
    if not isinstance(raw, int):
        raise TypeError("a hash is a number or bytes")
    return raw % U64
