"""The smallest layout of a fleet that handles a load."""

from dataclasses import replace

import pytest

from gateway.planning.costs import MEASURED
from gateway.planning.fleet_plan import fleet_plan
from gateway.planning.smallest_layout import NoLayout, smallest_layout
from tests.unit.gateway.planning.test_fleet_plan import LAYOUT, MACHINES
from tests.unit.gateway.planning.test_traffic import DEMAND


def smallest(demand):
    return smallest_layout(demand, LAYOUT, MACHINES, MEASURED)


def test_a_small_load_needs_one_gateway():
    found = smallest(DEMAND).layout
    assert (found.gateways, found.primaries, found.deployments) == (1, 1, 1)


@pytest.mark.parametrize("requests_per_second", [10, 300, 1000, 10_000, 100_000])
@pytest.mark.parametrize("models", [1, 100])
def test_the_smallest_layout_handles_the_load(requests_per_second, models):
    demand = replace(DEMAND, requests_per_second=requests_per_second, models=models, tenants=5000)
    found = smallest(demand)
    assert found.first.share <= 1
    assert fleet_plan(demand, found.layout, MACHINES, MEASURED).first.share == found.first.share
    if found.layout.deployments > 1:
        fewer = replace(found.layout, deployments=found.layout.deployments - 1)
        assert fleet_plan(demand, fewer, MACHINES, MEASURED).first.share > 1


def test_many_models_need_no_more_deployments_than_one_giant_model():
    demand = replace(DEMAND, requests_per_second=5000, tenants=5000)
    one, many = (smallest(replace(demand, models=models)).layout for models in (1, 100))
    assert many.deployments <= one.deployments


@pytest.mark.parametrize("tenants", [1, 2])
def test_a_tenant_is_not_divided_among_deployments(tenants):
    demand = replace(DEMAND, requests_per_second=20_000 * tenants, tenants=tenants)
    with pytest.raises(NoLayout, match=r"a tenant .* belongs to one deployment"):
        smallest(demand)


def test_a_load_that_no_layout_handles_is_refused_with_its_bottleneck():
    with pytest.raises(NoLayout, match="memory of a gateway process"):
        smallest(replace(DEMAND, blocks=10**13, tenants=1_000_000))
