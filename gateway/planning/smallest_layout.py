"""The search for the smallest layout of a fleet that can handle a load."""

from collections.abc import Iterator
from dataclasses import replace

from gateway.planning.costs import FleetCosts
from gateway.planning.demand import FleetDemand, FleetLayout, FleetMachines
from gateway.planning.fleet_plan import FleetPlan, demand_of_busiest, fleet_plan, shared_parts, us_per_change
from gateway.planning.shares import QUEUE_SHARDS

GATEWAYS_MAX = 4096
"""Of one deployment."""

DEPLOYMENTS_MAX = 256
PRIMARIES = (1, 3, 6, 12, 24, 48)


class NoLayout(Exception):
    """No layout within the bounds of the search can handle the load; the message names the overloaded part."""


def smallest_layout(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, costs: FleetCosts
) -> FleetPlan:
    """Return the plan of the smallest layout that can handle the load, with as many processes per gateway.

    Fewer deployments are preferred to fewer gateways, and these to fewer primaries. Raises NoLayout.
    """
    found = _first_enough(_doubled(DEPLOYMENTS_MAX), demand, layout, machines, costs)
    most = found.layout.deployments
    if found.first.share <= 1:
        return _first_enough(range(most // 2 + 1, most + 1), demand, layout, machines, costs)
    part = found.first
    raise NoLayout(
        f"no layout of up to {DEPLOYMENTS_MAX} deployments handles this load: the {part.name} has at least"
        f" {part.share:.1f} times its bound; a tenant (there are {demand.tenants:,}) belongs to one deployment"
    )


def _first_enough(
    numbers: Iterator[int] | range,
    demand: FleetDemand,
    layout: FleetLayout,
    machines: FleetMachines,
    costs: FleetCosts,
) -> FleetPlan:
    """Return the first layout, by the number of deployments, that handles the load, or the one nearest to it."""
    nearest: FleetPlan | None = None
    for deployments in numbers:
        for primaries in PRIMARIES:
            for shards in (1,) if primaries == 1 else sorted({1, layout.tenant_shards, QUEUE_SHARDS}):
                tried = replace(layout, deployments=deployments, primaries=primaries, tenant_shards=shards)
                tried = _enough_gateways(demand, tried, machines, costs)
                tried = _enough_shared_primaries(demand, tried, machines, costs)
                plan = fleet_plan(demand, tried, machines, costs)
                if plan.first.share <= 1:
                    return plan
                if nearest is None or plan.first.share < nearest.first.share:
                    nearest = plan
    assert nearest is not None
    return nearest


def _enough_gateways(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, costs: FleetCosts
) -> FleetLayout:
    """Return the layout with as many gateways as the CPU load needs, up to GATEWAYS_MAX per deployment."""
    rate = demand_of_busiest(demand, layout.deployments).requests_per_second
    left = machines.used_max - rate * costs.changes * us_per_change(layout, costs) / 1e6
    needed = rate * costs.process_us_per_request / 1e6
    per_deployment = GATEWAYS_MAX if left <= 0 else -(-needed // (left * layout.processes))
    gateways = max(1, min(GATEWAYS_MAX, int(per_deployment))) * layout.deployments
    return replace(layout, gateways=gateways)


def _enough_shared_primaries(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, costs: FleetCosts
) -> FleetLayout:
    """Return the layout with as many primaries as the Redis needs that all deployments share."""
    if layout.deployments == 1:
        return replace(layout, shared_primaries=1)
    for primaries in PRIMARIES:
        layout = replace(layout, shared_primaries=primaries)
        if all(part.share <= 1 for part in shared_parts(demand, layout, machines, costs)):
            break
    return layout


def _doubled(most: int) -> Iterator[int]:
    number = 1
    while number <= most:
        yield number
        number *= 2
