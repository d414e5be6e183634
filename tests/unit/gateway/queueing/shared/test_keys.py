"""The keys of the shared queue: hash tags whose slots lie at equal distances."""

from collections import Counter

import pytest

from gateway.queueing.shared.keys import CLUSTER_SHARDS, MESSAGES, QueueKeys, shard_tags
from gateway.queueing.shared.shard_layout import shard_of_group
from radix_cache.redis.topology import SLOTS, slot_of


def primary_of(tag, primaries):
    """Slots are divided evenly among primaries, as clusters do."""
    return slot_of(f"{{{tag}}}") * primaries // SLOTS


def test_one_shard_has_the_keys_that_a_single_server_has_always_had():
    assert shard_tags(1) == (MESSAGES,)
    assert QueueKeys("rg", *shard_tags(1)).turns == "rg:{queue}:turns"


@pytest.mark.parametrize("primaries", [2, 3, 4, 6, 8, 12])
def test_each_primary_has_as_many_shards_as_another(primaries):
    tags = shard_tags(CLUSTER_SHARDS)
    assert MESSAGES in tags
    assert len(set(tags)) == CLUSTER_SHARDS
    assert set(Counter(primary_of(tag, primaries) for tag in tags).values()) == {CLUSTER_SHARDS // primaries}


@pytest.mark.parametrize("primaries", [3, 6])
def test_many_models_spread_over_all_primaries(primaries):
    tags = shard_tags(CLUSTER_SHARDS)
    shards = [shard_of_group(f"team-{number}/model", CLUSTER_SHARDS) for number in range(1000)]
    models = Counter(primary_of(tags[shard], primaries) for shard in shards)
    assert max(models.values()) <= 1.2 * 1000 / primaries


def test_all_keys_of_a_shard_have_one_slot():
    keys = QueueKeys("rg", shard_tags(CLUSTER_SHARDS)[3])
    names = [*keys.of(["m", "n#batch"]), keys.turns, keys.report("l", "g"), keys.preemption("p")]
    assert len({slot_of(name) for name in names}) == 1
