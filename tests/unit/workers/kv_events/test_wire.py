"""KV events on the wire, as engines have been seen to write them: vLLM 0.29 and 0.32, SGLang 0.5.23."""

from array import array
from dataclasses import replace

import msgspec
import pytest

from radix_cache.events import BlocksRemoved, BlocksStored, CacheCleared
from workers.kv_events.wire import EventsUnreadable, decode_batch


def frames(events, *, sequence=7, topic=b"", rest=(0,)):
    return [topic, sequence.to_bytes(8, "big"), msgspec.msgpack.encode([1.5, events, *rest])]


def one(event):
    (decoded,) = decode_batch(frames([event])).events
    return decoded


STORED = BlocksStored(hashes=(1, 2), parent=None, tokens=array("I", [5, 6, 7, 8]), page_size=2)


def test_a_map_and_an_array_decode_to_the_same_event():
    as_map = {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [5, 6, 7, 8],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    grouped = replace(STORED, group=0)
    assert one(as_map) == grouped
    assert one(["BlockStored", [1, 2], None, [5, 6, 7, 8], 2]) == STORED
    assert one(["BlockStored", [1, 2], None, [5, 6, 7, 8], 2, None, "gpu", None, None, 0]) == grouped


def test_the_frame_of_a_batch():
    batch = decode_batch(frames([["AllBlocksCleared"]], sequence=2**40, rest=(3,)))
    assert (batch.sequence, batch.rank, batch.at, batch.events) == (2**40, 3, 1.5, (CacheCleared(),))
    assert decode_batch(frames([], rest=())).rank == 0
    assert decode_batch(frames([], rest=(None,))).rank == 0
    # A replay has an empty frame before, and of older engines no topic.
    assert decode_batch([b"", *frames([])]).sequence == decode_batch([b"", *frames([])[1:]]).sequence == 7


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(5, 5), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1), (b"\x09" * 32, 0x0909090909090909), (b"\x05", 5)],
)
def test_hashes_of_every_kind_are_one_number(raw, expected):
    assert one({"type": "BlockRemoved", "block_hashes": [raw]}) == BlocksRemoved(hashes=(expected,))
    assert stored(parent_block_hash=raw).parent == expected


def stored(**more):
    event = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
    return one({**event, "token_ids": [1, 2], "block_size": 2, **more})


@pytest.mark.parametrize(
    ("more", "salt"),
    [
        ({"cache_salt": "s"}, "s"),
        ({"extra_keys": [["s"]]}, "s"),
        ({"extra_keys": [["lora", "s"]], "lora_name": "lora"}, "s"),
        ({"extra_keys": [[["cache_salt", "s"]]]}, "s"),
        ({"extra_keys": [None]}, ""),
        ({"extra_keys": [["lora"]], "lora_name": "lora"}, ""),
        ({}, ""),
    ],
)
def test_the_salt_is_found_where_each_engine_puts_it(more, salt):
    assert stored(**more).salt == salt


def test_media_are_upper_case_and_gpu_unless_named():
    assert stored(medium="cpu_pinned").medium == "CPU_PINNED"
    assert stored(medium=None).medium == "GPU"
    assert stored(medium="tape 1").medium == stored(medium="tape 2").medium == "OTHER"
    assert one(["BlockRemoved", [1], "cpu"]) == BlocksRemoved(hashes=(1,), medium="CPU")


@pytest.mark.parametrize(
    "more",
    [
        {"token_ids": [1]},
        {"token_ids": [[1, 2], [3, 4]]},
        {"block_hashes": [1, 2, 3]},
    ],
)
def test_what_describes_no_prefix_is_marked_and_brings_no_tokens(more):
    event = stored(**more)
    assert event.partial
    assert not event.tokens


@pytest.mark.parametrize(
    ("more", "main"),
    [
        ({}, True),
        ({"group_idx": 0}, True),
        ({"group_idx": 3, "kv_cache_spec_kind": "full_attention"}, True),
        ({"group_idx": 0, "kv_cache_spec_kind": "mla_attention"}, True),
        ({"group_idx": 0, "kv_cache_spec_kind": "sink_full_attention"}, True),
        ({"group_idx": 1}, False),
        ({"kv_cache_spec_kind": "sliding_window"}, False),
        ({"group_idx": 0, "kv_cache_spec_kind": "sliding_window_mla"}, False),
        ({"group_idx": 0, "kv_cache_spec_kind": "mamba"}, False),
        ({"group_idx": 0, "kv_cache_spec_kind": "something new"}, False),
    ],
)
def test_only_groups_that_keep_whole_prefixes_are_main(more, main):
    assert stored(**more).main is main


@pytest.mark.parametrize("group", [-1, 256, 2**40])
def test_no_engine_has_so_many_groups(group):
    with pytest.raises(EventsUnreadable):
        stored(group_idx=group)


def test_a_removal_has_the_number_of_its_group():
    assert one(["BlockRemoved", [1], "GPU", 2]) == BlocksRemoved(hashes=(1,), group=2)
    assert one({"type": "BlockRemoved", "block_hashes": [1], "group_idx": 0}).group == 0


@pytest.mark.parametrize(
    ("keys", "pages"),
    [
        ([None, None, None], 3),
        ([["salt"], None, None], 3),
        ([["lora", "salt"], ["lora"], ["lora"]], 3),
        ([[["cache_salt", "s"]], [["lora", "lora", "/path"]], None], 3),
        ([None, [["image", 3]], None], 1),
        ([None, None, [["mm", "image", 3]]], 2),
        ([[["mm", "image", 0]], None, None], 0),
        ([None, ["a digest"], None], 1),
        ([None, [b"digest"], None], 1),
        ([["lora", b"digest"], None, None], 0),
    ],
)
def test_from_an_image_on_tokens_do_not_describe_a_prompt(keys, pages):
    event = stored(block_hashes=[1, 2, 3], token_ids=[1, 2, 3, 4, 5, 6], extra_keys=keys, lora_name="lora")
    assert (len(event.hashes), len(event.tokens), event.partial) == (pages, 2 * pages, False)


def test_what_is_unknown_is_passed_over():
    batch = decode_batch(frames([{"type": "SomethingNew", "x": 1}, ["AnotherThing"], ["AllBlocksCleared"]]))
    assert batch.events == (CacheCleared(),)


@pytest.mark.parametrize(
    "wrong",
    [
        [b"only one frame"],
        [],
        [b"", bytes(8), b"\xc1"],
        [b"", bytes(8), b""],
        frames([{"type": "BlockStored"}]),
        frames([5]),
        frames([["BlockStored", 5, None, [], 2]]),
        frames([{"type": "BlockStored", "block_hashes": [1], "token_ids": [-1], "block_size": 1}]),
        frames([[]]),
        [b"", bytes(8), b"\x91" * 100_000],
        [b"", b"\xff" * 20, frames([])[2]],
        [b"", bytes(8), msgspec.msgpack.encode([float("inf"), [], 0])],
        frames([{"type": "BlockRemoved", "block_hashes": [1.5]}]),
    ],
)
def test_what_is_no_batch_is_unreadable_and_nothing_worse(wrong):
    with pytest.raises(EventsUnreadable):
        decode_batch(wrong)
