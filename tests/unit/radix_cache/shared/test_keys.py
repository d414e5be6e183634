"""The keys of the shared index: the trees of a namespace, and how they lie in a cluster."""

from collections import Counter

import pytest

from radix_cache.namespace import Namespace
from radix_cache.redis.topology import SLOTS, slot_of
from radix_cache.shared.keys import CLUSTER_PARTS, SHARDS, Keys, tree_id

SPACE = Namespace(model="m", block_size=16)
CLUSTER = Keys.of_redis("redis+cluster://one,two", "rg")
EVEN = pytest.mark.parametrize("primaries", [2, 3, 4, 6, 8, 12])


def primaries_of(keys, shards, primaries):
    """How many of the shards each primary has; slots are divided evenly among primaries, as clusters do."""
    return Counter(slot_of(keys.tag(shard)) * primaries // SLOTS for shard in shards)


def test_on_one_server_a_namespace_is_one_tree():
    keys = Keys.of_redis("redis://one", "rg")
    assert {keys.tree_of(SPACE, first) for first in range(100)} == {tree_id(SPACE)}
    assert keys.trees_of(SPACE) == [tree_id(SPACE)]


def test_in_a_cluster_the_first_block_of_a_path_names_its_tree():
    found = {CLUSTER.tree_of(SPACE, first) for first in range(1000)}
    assert found == set(CLUSTER.trees_of(SPACE))
    assert len({CLUSTER.shard(tree) for tree in found}) == CLUSTER_PARTS
    assert CLUSTER.tree_of(SPACE, 7) == CLUSTER.tree_of(SPACE, 7 + CLUSTER_PARTS)


@EVEN
def test_each_primary_has_as_many_shards_as_another(primaries):
    found = primaries_of(CLUSTER, range(SHARDS), primaries)
    assert set(found.values()) == {SHARDS // primaries}


@EVEN
@pytest.mark.parametrize("model", ["m", "llama", "qwen"])
def test_each_primary_has_as_many_trees_of_a_namespace_as_another(primaries, model):
    trees = CLUSTER.trees_of(Namespace(model=model, block_size=64, group="tenant:acme"))
    found = primaries_of(CLUSTER, map(CLUSTER.shard, trees), primaries)
    assert set(found.values()) == {CLUSTER_PARTS // primaries}


def test_deployments_in_one_cluster_do_not_have_the_same_namespace_in_the_same_slot():
    other = Keys.of_redis("redis+cluster://one,two", "other")
    tree = CLUSTER.tree_of(SPACE, 1)
    assert slot_of(CLUSTER.tree(tree)) != slot_of(other.tree(tree))
    assert set(primaries_of(other, range(SHARDS), 6).values()) == {SHARDS // 6}
