"""Hashes that other routers compute too, and the edges of a block."""

from array import array

import pytest

from radix_cache import blocks
from radix_cache.blocks import BlockHasher, pack_tokens
from radix_cache.namespace import Namespace, cache_salt, hasher_for


def hexes(hashes):
    return [f"{value:016x}" for value in hashes]


def test_hashes_equal_the_vectors_of_other_routers():
    hasher, tokens = BlockHasher(block_size=16), pack_tokens(range(1, 65))
    local = ["ea06fc71a5ee6e88", "1fbf39bd106be0b5", "a8562fe663b7a097", "4bad57d34048b86a"]
    chained = ["ea06fc71a5ee6e88", "ad01835a37dd294c", "0d55e56c2bccbd1a", "445502a8048d6688"]
    assert hexes(hasher.local_hashes(tokens)) == local
    assert hexes(hasher.of_tokens(tokens)) == chained


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (15, 0), (16, 1), (17, 1), (31, 1), (32, 2)])
def test_only_full_blocks_are_hashed(tokens, blocks):
    assert len(BlockHasher(block_size=16).of_tokens(pack_tokens(range(tokens)))) == blocks


def test_a_chained_hash_names_everything_before_it():
    hasher = BlockHasher(block_size=2)
    one = hasher.of_tokens(pack_tokens([1, 2, 3, 4, 5, 6]))
    other = hasher.of_tokens(pack_tokens([9, 2, 3, 4, 5, 6]))
    assert not set(one) & set(other)
    assert hasher.of_tokens(pack_tokens([1, 2, 3, 4, 7, 8]))[:2] == one[:2]


def test_a_salted_chain_has_no_hash_in_common_with_another():
    tokens = pack_tokens(range(64))
    plain = BlockHasher(block_size=16).of_tokens(tokens)
    salted = BlockHasher(block_size=16, salt=b"tenant").of_tokens(tokens)
    assert not set(plain) & set(salted)


def test_text_is_hashed_in_blocks_of_as_many_bytes_as_tokens_take():
    hasher = BlockHasher(block_size=2)
    text = b"eight by" + b"tes more" + b"x"
    assert len(hasher.of_text(text)) == 2
    assert hasher.of_text(text)[0] == hasher.of_text(b"eight by")[0]


@pytest.mark.parametrize("size", [1, 2, 16])
@pytest.mark.parametrize("before", [b"", b"mark"])
@pytest.mark.parametrize("length", [0, 3, 4, 7, 8, 60, 61, 200])
def test_what_stands_before_a_long_text_is_hashed_as_one_with_it(size, before, length, monkeypatch):
    hasher, text = BlockHasher(block_size=size, salt=b"tenant"), bytes(range(length))
    whole = hasher.of_text(before + text)
    assert hasher.of_text(text, before) == whole
    monkeypatch.setattr(blocks, "COPIED_BYTES_MAX", 0)
    assert hasher.of_text(text, before) == hasher.of_text(bytearray(text), before) == whole


def test_packed_tokens_and_their_bytes_are_the_same_blocks():
    hasher = BlockHasher(block_size=4)
    tokens = pack_tokens([1, 2, 3, 4, 5])
    assert hasher.of_tokens(tokens) == hasher.of_text(array("I", tokens).tobytes()[:16])


SECRET = b"secret"


@pytest.mark.parametrize(
    "other",
    [
        Namespace(model="n", block_size=16, group="g"),
        Namespace(model="m", block_size=32, group="g"),
        Namespace(model="m", block_size=16, group="h"),
        Namespace(model="mg", block_size=16, group=""),
    ],
)
def test_whatever_separates_caches_separates_hashes(other):
    tokens = pack_tokens(range(64))
    ours = hasher_for(Namespace(model="m", block_size=16, group="g"), SECRET).of_tokens(tokens)
    assert not set(ours) & set(hasher_for(other, SECRET).of_tokens(tokens))


def test_parts_of_a_namespace_cannot_be_shifted_into_each_other():
    one = Namespace(model="ab", block_size=16, group="c")
    other = Namespace(model="a", block_size=16, group="bc")
    assert one.packed() != other.packed()


def test_the_bytes_of_a_namespace_stay_those_of_earlier_versions():
    packed = Namespace(model="ab", block_size=16, group="c").packed()
    assert packed == b"\2\0\0\0ab\0\0\0\0\1\0\0\0c\0\0\0\0\2\0\0\x0016"


def test_hashes_depend_on_the_deployment_secret():
    namespace, tokens = Namespace(model="m", block_size=16), pack_tokens(range(64))
    one, other = hasher_for(namespace, b"one"), hasher_for(namespace, b"other")
    assert not set(one.of_tokens(tokens)) & set(other.of_tokens(tokens))


def test_the_engine_salt_is_stable_opaque_and_empty_for_the_shared_cache():
    assert cache_salt("tenant:acme", SECRET) == cache_salt("tenant:acme", SECRET)
    assert cache_salt("tenant:acme", SECRET) != cache_salt("tenant:globex", SECRET)
    assert cache_salt("tenant:acme", SECRET) != cache_salt("tenant:acme", b"other")
    assert "acme" not in cache_salt("tenant:acme", SECRET)
    assert cache_salt("", SECRET) == ""
