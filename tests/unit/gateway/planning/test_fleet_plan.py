"""The load of each part of a fleet, and the bottleneck."""

from dataclasses import replace

import pytest

from gateway.planning.costs import MEASURED
from gateway.planning.demand import FleetLayout, FleetMachines
from gateway.planning.fleet_plan import demand_of_busiest, fleet_plan
from gateway.planning.shares import share_of_busiest
from tests.unit.gateway.planning.test_traffic import DEMAND

LAYOUT = FleetLayout(gateways=2, processes=1, primaries=1)
MACHINES = FleetMachines(redis_bytes=16e9, process_bytes=4e9, network_bytes_per_second=1.25e9)


def plan(demand=DEMAND, layout=LAYOUT, machines=MACHINES):
    return fleet_plan(demand, layout, machines, MEASURED)


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


def test_every_process_that_shares_the_queue_gets_the_load_of_every_worker():
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


def test_gateways_at_rest_take_cpu_of_redis():
    quiet = replace(DEMAND, requests_per_second=0.001)
    few, many = (plan(quiet, replace(LAYOUT, gateways=gateways)).parts[0].used for gateways in (2, 2002))
    commands = 2000 * MEASURED.idle_commands
    assert many - few == pytest.approx(commands * MEASURED.redis_us_per_command / 1e6, rel=0.01)


def test_the_busiest_deployment_has_more_than_its_part_of_few_tenants():
    demand, two = replace(DEMAND, tenants=10), replace(LAYOUT, deployments=2)
    assert 55 < demand_of_busiest(demand, 2).requests_per_second < 65
    assert demand_of_busiest(replace(demand, tenants=100_000), 2).requests_per_second == pytest.approx(
        50, rel=0.01
    )
    assert plan(demand, two).second.changes == pytest.approx(
        MEASURED.changes * demand_of_busiest(demand, 2).requests_per_second
    )


def test_quotas_of_several_deployments_are_in_the_redis_that_they_share():
    one, two = plan(), plan(layout=replace(LAYOUT, deployments=2, gateways=4))
    assert one.request.commands - two.request.commands == pytest.approx(MEASURED.quotas.commands, rel=0.1)
    assert len(two.parts) == len(one.parts) + 2
    crowded = replace(DEMAND, requests_per_second=50_000, tenants=1_000_000)
    many = replace(LAYOUT, deployments=128, gateways=128 * 4, primaries=3)
    assert plan(crowded, many).first.name == "CPU of the Redis that all share"
    told = plan(replace(DEMAND, workers=100_000, tenants=1_000_000), many)
    assert told.first.name == "network of the Redis that all share"


def test_the_busiest_primary_has_at_least_one_of_few_units():
    assert share_of_busiest(1, 3) == 1
    assert share_of_busiest(24, 3) == pytest.approx(1 / 3)
    assert share_of_busiest(25, 3) == pytest.approx(9 / 25)
