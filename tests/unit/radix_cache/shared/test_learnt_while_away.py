"""What is learnt while Redis is away: it is sent once its shard can be followed, and only then."""

from array import array

import pytest

from radix_cache.local_index import LocalIndex
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import REGISTRY, Keys
from radix_cache.shared.learnt_while_away import LearntWhileAway, UnsentPath
from radix_cache.tiers import Tier
from tests.fakes.clock import FakeClock

SPACE = Namespace(model="m", block_size=16)
W = WorkerId("w")
PATH = array("Q", [1, 2, 3])
KEYS = Keys(prefix="t", shards=2)


@pytest.fixture
def away():
    def new_index():
        return LocalIndex(FakeClock(), blocks_max=100, predicted_seconds=10, idle_seconds_max=100)

    away = LearntWhileAway(new_index, KEYS)
    away.add(UnsentPath(SPACE, PATH, W, Tier.GPU))
    away.add_worker(W)
    return away


def test_a_path_counts_until_it_is_taken_to_be_sent(away):
    assert away.index.match(SPACE, PATH).confirmed == {W: 3}
    paths, workers = away.take()
    assert ([path.worker for path in paths], workers, away.index) == ([W], {W}, None)
    assert away.take() == ([], set())


def test_a_path_of_a_lost_shard_stays(away):
    away.lost_shards = {KEYS.shard_of(SPACE, PATH)}
    assert away.take() == ([], {W})
    assert away.index.match(SPACE, PATH).confirmed == {W: 3}


def test_nothing_is_taken_while_the_registry_is_lost(away):
    away.lost_shards = {REGISTRY}
    assert away.take() == ([], set())


def test_a_worker_that_left_is_forgotten(away):
    away.forget(W)
    assert away.take()[0] == []
