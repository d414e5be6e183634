"""Calculates the load of each part of a fleet, its bottleneck, and the smallest layout that handles the load."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist

from gateway.planning.costs import FleetCosts
from gateway.planning.demand import FleetDemand, FleetLayout, FleetMachines
from gateway.planning.traffic import INDEX_SHARDS, RedisTraffic, request_traffic

GATEWAYS_MAX = 4096
DEPLOYMENTS_MAX = 256
QUEUE_SHARDS = 24
"""CLUSTER_SHARDS of gateway/queueing/shared/keys.py."""

NAMESPACE_SHARDS = 24
"""CLUSTER_PARTS of radix_cache/shared/keys.py."""


class NoLayout(Exception):
    """No layout within the bounds of the search can handle the load; the message names the overloaded part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLoad:
    """The load of one part."""

    name: str
    used: float
    bound: float
    unit: str
    remedy: str
    """What to do if this part is overloaded."""

    @property
    def share(self) -> float:
        """The used share of the bound."""
        return self.used / self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The load of a layout."""

    demand: FleetDemand
    layout: FleetLayout
    request: RedisTraffic
    """Of one request."""
    second: RedisTraffic
    """Of one deployment in a second, including the costs of gateways without requests."""
    parts: tuple[PartLoad, ...]

    @property
    def first(self) -> PartLoad:
        """The bottleneck: the part that is overloaded first when the load grows."""
        return max(self.parts, key=lambda part: part.share)


def fleet_plan(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, costs: FleetCosts
) -> FleetPlan:
    """Return the load of each part of the layout."""
    own = _demand_of_one(demand, layout.deployments)
    request = request_traffic(own, layout.members, costs, layout.followers)
    second = _with_idle(request.scaled(own.requests_per_second), own, layout, costs)
    parts = (
        *_redis_parts(own, layout, machines, request, second, costs),
        *_process_parts(own, layout, machines, request.changes, costs),
    )
    return FleetPlan(demand=demand, layout=layout, request=request, second=second, parts=parts)


def smallest_layout(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, costs: FleetCosts
) -> FleetPlan:
    """Return the plan of the smallest layout that can handle the load, with as many processes per gateway.

    Fewer deployments are preferred to fewer gateways, and these to fewer primaries. Raises NoLayout.
    """
    plan = fleet_plan(demand, layout, machines, costs)
    for deployments in _doubled(DEPLOYMENTS_MAX):
        for primaries in (1, 3, 6, 12, 24, 48):
            for shards in (1,) if primaries == 1 else sorted({1, layout.tenant_shards, QUEUE_SHARDS}):
                tried = replace(layout, deployments=deployments, primaries=primaries, tenant_shards=shards)
                plan = fleet_plan(demand, _enough_gateways(demand, tried, machines, costs), machines, costs)
                if plan.first.share <= 1:
                    return plan
    raise NoLayout(
        f"no layout handles this load: {plan.first.name} has {plan.first.share:.1f} times its bound"
    )


def share_of_busiest(units: int, primaries: int) -> float:
    """Return the share of the busiest primary if `units` equal units are spread evenly."""
    return -(-units // primaries) / units


def share_by_hash(units: int, primaries: int) -> float:
    """Return the expected share of the busiest primary if `units` equal units are placed by hash.

    The counts of the primaries are nearly normal; the expected largest of p of them is that of Blom: Statistical
    Estimates and Transformed Beta-Variables (1958).
    """
    mean = 1 / primaries
    if primaries == 1:
        return mean
    largest = NormalDist().inv_cdf((primaries - 0.375) / (primaries + 0.25))
    found = mean + largest * sqrt(mean * (1 - mean) / units)
    return min(1.0, max(found, share_of_busiest(units, primaries)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BusiestShares:
    """The busiest primary's share of each part of the data."""

    index: float
    quotas: float
    queue: float
    commands: float
    """Of all commands of requests."""


def busiest_shares(demand: FleetDemand, layout: FleetLayout, costs: FleetCosts) -> BusiestShares:
    """Return the shares of the busiest primary of one deployment, assumed to be the same one for every part."""
    primaries, divided = layout.primaries, layout.tenant_shards > 1
    index = share_of_busiest(min(demand.namespaces * NAMESPACE_SHARDS, INDEX_SHARDS), primaries)
    quotas = share_by_hash(demand.tenants, primaries)
    queue = max(
        share_by_hash(demand.namespaces if divided else demand.models, primaries),
        share_of_busiest(min(demand.models * layout.tenant_shards, QUEUE_SHARDS), primaries),
    )
    parts = [(index, costs.index), (quotas, costs.quotas)]
    if layout.members > 1:
        parts.append((queue, costs.queue))
    commands = sum(share * part.commands for share, part in parts) / sum(part.commands for _, part in parts)
    return BusiestShares(index=index, quotas=quotas, queue=queue, commands=commands)


def _demand_of_one(demand: FleetDemand, deployments: int) -> FleetDemand:
    """Return the load of one deployment: its tenants with their requests, workers and blocks."""
    return replace(
        demand,
        requests_per_second=demand.requests_per_second / deployments,
        workers=-(-demand.workers // deployments),
        tenants=max(1, -(-demand.tenants // deployments)),
        blocks=-(-demand.blocks // deployments),
    )


def _with_idle(
    traffic: RedisTraffic, demand: FleetDemand, layout: FleetLayout, costs: FleetCosts
) -> RedisTraffic:
    workers, models = demand.workers, demand.models
    members = layout.members
    tips = (members - layout.followers) * costs.tip_commands
    loads = workers * costs.idle_bytes_out_per_worker if members > 1 else 0.0
    divided = layout.tenant_shards > 1 and members > 1
    visits = costs.visit_commands * min(layout.tenant_shards * models, QUEUE_SHARDS) if divided else 0.0
    return replace(
        traffic,
        commands=traffic.commands + members * costs.idle_commands - tips + visits,
        bytes_in=traffic.bytes_in + members * costs.idle_bytes_in,
        bytes_out=traffic.bytes_out + members * (costs.idle_bytes_out + loads),
    )


def _redis_parts(
    demand: FleetDemand,
    layout: FleetLayout,
    machines: FleetMachines,
    request: RedisTraffic,
    second: RedisTraffic,
    costs: FleetCosts,
) -> Iterator[PartLoad]:
    """Yield the load of the busiest primary."""
    shares = busiest_shares(demand, layout, costs)
    index, quotas, busiest = shares.index, shares.quotas, shares.commands
    # In a cluster the calls of each part are sent separately: up to three scripts instead of one.
    scripts = request.scripts * (1 if layout.primaries == 1 else 3)
    cpu_us = busiest * (scripts * costs.redis_us_per_script + request.commands * costs.redis_us_per_command)
    cpu_us += index * request.deliveries * costs.redis_us_per_delivery
    remedy = "more primaries"
    if shares.queue > 1.2 / layout.primaries and layout.members > 1 and layout.primaries > 1:
        remedy += ", or the tenants of its largest models in more shards (queueing.tenant_shards)"
    yield PartLoad(
        name="CPU of the busiest Redis primary",
        used=demand.requests_per_second * cpu_us / 1e6,
        bound=machines.used_max,
        unit="cores",
        remedy=remedy,
    )
    yield PartLoad(
        name="network of the busiest Redis primary",
        used=index * second.bytes_out + busiest * second.bytes_in,
        bound=machines.network_bytes_per_second * machines.used_max,
        unit="bytes/s",
        remedy="more deployments",
    )
    blocks = index * demand.blocks * costs.redis_bytes_per_block
    yield PartLoad(
        name="memory of the fullest Redis primary",
        used=blocks + quotas * demand.tenants * costs.redis_bytes_per_tenant,
        bound=machines.redis_bytes * machines.used_max,
        unit="bytes",
        remedy="more primaries" if index < 1 or layout.primaries == 1 else "more deployments",
    )


def _process_parts(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, changes: float, costs: FleetCosts
) -> Iterator[PartLoad]:
    """Yield the load of the first process of a gateway, which follows the index for all of its processes."""
    rate = demand.requests_per_second
    own = rate / layout.members * costs.process_us_per_request / 1e6
    followed = rate * changes * _us_per_change(layout, costs) / 1e6
    shown = costs.segment_bytes_per_block if layout.processes > 1 else 0.0
    yield PartLoad(
        name="CPU of a gateway process",
        used=own + followed,
        bound=machines.used_max,
        unit="cores",
        remedy="more gateways" if followed < machines.used_max / 2 else "more deployments",
    )
    yield PartLoad(
        name="memory of a gateway process",
        used=costs.process_bytes + demand.blocks * (costs.process_bytes_per_block + shown),
        bound=machines.process_bytes * machines.used_max,
        unit="bytes",
        remedy="more deployments",
    )


def _enough_gateways(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, costs: FleetCosts
) -> FleetLayout:
    """Return the layout with as many gateways as the CPU load needs, up to GATEWAYS_MAX per deployment."""
    rate = demand.requests_per_second / layout.deployments
    left = machines.used_max - rate * costs.changes * _us_per_change(layout, costs) / 1e6
    needed = rate * costs.process_us_per_request / 1e6
    per_deployment = GATEWAYS_MAX if left <= 0 else -(-needed // (left * layout.processes))
    gateways = max(1, min(GATEWAYS_MAX, int(per_deployment))) * layout.deployments
    return replace(layout, gateways=gateways)


def _us_per_change(layout: FleetLayout, costs: FleetCosts) -> float:
    return costs.process_us_per_change if layout.processes == 1 else costs.process_us_per_published_change


def _doubled(most: int) -> Iterator[int]:
    number = 1
    while number <= most:
        yield number
        number *= 2
