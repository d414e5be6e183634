"""The load of each part of a fleet, the bottleneck, and the smallest layout that handles the load."""

from dataclasses import replace

import pytest

from gateway.planning.costs import MEASURED
from gateway.planning.demand import FleetLayout, FleetMachines
from gateway.planning.fleet_plan import NoLayout, fleet_plan, share_of_busiest, smallest_layout
from tests.unit.gateway.planning.test_traffic import DEMAND

LAYOUT = FleetLayout(gateways=2, processes=1, primaries=1)
MACHINES = FleetMachines(redis_bytes=16e9, process_bytes=4e9, network_bytes_per_second=1.25e9)


def plan(demand=DEMAND, layout=LAYOUT, machines=MACHINES):
    return fleet_plan(demand, layout, machines, MEASURED)


def test_a_small_load_breaks_nothing_and_needs_one_gateway():
    assert plan().first.share < 0.5
    smallest = smallest_layout(DEMAND, LAYOUT, MACHINES, MEASURED).layout
    assert (smallest.gateways, smallest.primaries, smallest.deployments) == (1, 1, 1)


def test_shares_grow_with_the_load():
    more = plan(replace(DEMAND, requests_per_second=1000))
    assert all(after.share >= before.share for before, after in zip(plan().parts, more.parts, strict=True))


@pytest.mark.parametrize(
    ("demand", "machines", "first"),
    [
        (replace(DEMAND, blocks=10**9), MACHINES, "memory of a gateway process"),
        (
            replace(DEMAND, blocks=10**9),
            replace(MACHINES, process_bytes=1e12),
            "memory of the fullest Redis primary",
        ),
        (replace(DEMAND, requests_per_second=3000), MACHINES, "CPU of a gateway process"),
        (DEMAND, replace(MACHINES, network_bytes_per_second=1e3), "network of the busiest Redis primary"),
    ],
)
def test_the_part_that_breaks_first_is_named(demand, machines, first):
    assert plan(demand, machines=machines).first.name == first


@pytest.mark.parametrize("requests_per_second", [10, 300, 1000, 10_000, 100_000])
@pytest.mark.parametrize("models", [1, 100])
def test_the_smallest_layout_handles_the_load(requests_per_second, models):
    demand = replace(DEMAND, requests_per_second=requests_per_second, models=models, tenants=5000)
    found = smallest_layout(demand, LAYOUT, MACHINES, MEASURED)
    assert found.first.share <= 1
    assert plan(demand, found.layout).first.share == found.first.share
    if found.layout.deployments > 1:
        fewer = replace(found.layout, deployments=found.layout.deployments // 2)
        assert plan(demand, fewer).first.share > found.first.share


def test_every_process_that_shares_the_queue_hears_of_the_load_of_every_worker():
    few, many = (plan(replace(DEMAND, workers=workers)).second.bytes_out for workers in (100, 1100))
    assert many - few == pytest.approx(LAYOUT.members * 1000 * MEASURED.idle_bytes_out_per_worker)


def test_more_processes_bring_no_more_deliveries_and_one_copy_of_the_index():
    one, four = (plan(layout=replace(LAYOUT, processes=processes)) for processes in (1, 4))
    assert four.request.deliveries == one.request.deliveries
    assert four.second.commands < 4 * one.second.commands
    memory = [
        {part.name: part.used for part in each.parts}["memory of a gateway process"] for each in (one, four)
    ]
    assert memory[1] - memory[0] == pytest.approx(DEMAND.blocks * MEASURED.segment_bytes_per_block)


def test_many_models_need_fewer_deployments_than_one_giant_model():
    demand = replace(DEMAND, requests_per_second=5000, tenants=5000)
    one, many = (
        smallest_layout(replace(demand, models=models), LAYOUT, MACHINES, MEASURED).layout
        for models in (1, 100)
    )
    assert many.deployments <= one.deployments


def test_a_load_that_no_layout_handles_is_refused_with_its_bottleneck():
    with pytest.raises(NoLayout, match="memory of a gateway process"):
        smallest_layout(replace(DEMAND, blocks=10**13), LAYOUT, MACHINES, MEASURED)


def test_the_busiest_primary_has_at_least_one_of_few_units():
    assert share_of_busiest(1, 3) == 1
    assert share_of_busiest(24, 3) == pytest.approx(1 / 3)
    assert share_of_busiest(25, 3) == pytest.approx(9 / 25)
