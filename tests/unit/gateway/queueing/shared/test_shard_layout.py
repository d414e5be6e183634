"""Which shard of the shared queue decides on a request."""

from collections import Counter

import pytest

from gateway.fleet.model_groups import ModelGroups
from gateway.fleet.worker import Worker
from gateway.queueing.shared.keys import CLUSTER_SHARDS, queue_of
from gateway.queueing.shared.shard_layout import ShardLayout
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import StubAdapter

TENANTS = [f"tenant-{number}" for number in range(240)]


def groups(*of_workers):
    return ModelGroups(
        Worker(WorkerId(f"w{at}"), "test", StubAdapter(), frozenset(models), models_fixed=True)
        for at, models in enumerate(of_workers)
    )


def layout(tenant_shards, *of_workers, shards=CLUSTER_SHARDS):
    known = groups(*of_workers)
    return ShardLayout(shards, tenant_shards, lambda: known)


def test_all_tenants_of_a_model_are_in_one_shard_unless_they_are_divided():
    made = layout({"giant": 6}, ["giant"], ["small"])
    assert len({made.shard_of("small", tenant) for tenant in TENANTS}) == 1
    assert (made.is_divided("giant"), made.is_divided("small")) == (True, False)
    assert len({made.shard_of("giant", tenant) for tenant in TENANTS}) == 6


@pytest.mark.parametrize("primaries", [2, 3, 4, 6, 8, 12])
def test_divided_tenants_spread_over_all_primaries(primaries):
    made = layout({"giant": CLUSTER_SHARDS}, ["giant"])
    # Shard N has the slots of part N, so each primary has a row of them.
    found = Counter(made.shard_of("giant", tenant) * primaries // CLUSTER_SHARDS for tenant in TENANTS)
    assert max(found.values()) <= 1.5 * len(TENANTS) / primaries


def test_a_shard_has_the_groups_whose_tenants_it_decides_on():
    made = layout({"giant": 5}, ["giant"], ["small"])
    for model in ("giant", "small"):
        deciding = {made.shard_of(model, tenant) for tenant in TENANTS}
        assert {shard for shard in range(CLUSTER_SHARDS) if made.has_group(shard, model)} == deciding


def test_models_that_share_workers_are_divided_alike_with_their_batch_work():
    made = layout({"adapter": 4, "giant": 8}, ["giant", "adapter"], ["giant"])
    for tenant in TENANTS:
        shards = {
            made.shard_of(queue, tenant) for queue in ("giant", "adapter", queue_of("giant", background=True))
        }
        assert len(shards) == 1
    assert len({made.shard_of("adapter", tenant) for tenant in TENANTS}) == 8


def test_one_server_has_one_shard_whatever_the_settings():
    made = layout({"giant": 24}, ["giant"], shards=1)
    assert not made.divides
    assert made.shard_of("giant", "a tenant") == 0
