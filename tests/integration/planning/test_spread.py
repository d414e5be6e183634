"""The spread of commands over the primaries of a cluster, counted on real gateways."""

import pytest

from tests.benchmarks.fleet.counts import count
from tests.benchmarks.fleet.load import FleetLoad

IDLE_SECONDS = 2.0
TENANTS = 120
BUSIEST_MAX = 1.2


@pytest.mark.parametrize(
    ("primaries", "models", "tenant_shards"),
    [
        # On fewer primaries each has more of the shards, and they differ less.
        pytest.param(6, 1, 24, id="6 primaries, one giant model"),
        pytest.param(3, 60, 1, id="3 primaries, many small models"),
    ],
)
async def test_the_busiest_primary_has_little_more_commands_than_the_mean(
    primaries, models, tenant_shards, tmp_path
):
    load = FleetLoad(
        gateways=2,
        requests_per_second=100,
        requests=3 * TENANTS,
        new_blocks=4,
        primaries=primaries,
        models=models,
        tenants=TENANTS,
        tenant_shards=tenant_shards,
    )
    counts = await count(load, tmp_path, idle_seconds=IDLE_SECONDS)
    assert counts.busiest_primary <= BUSIEST_MAX
