"""Calculates the load of each part of a fleet of gateways, and its bottleneck."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from gateway.planning.costs import FleetCosts
from gateway.planning.demand import FleetDemand, FleetLayout, FleetMachines
from gateway.planning.shares import QUEUE_SHARDS, busiest_shares, share_by_hash
from gateway.planning.traffic import RedisTraffic, request_traffic, shared_traffic


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
    """Of the busiest deployment in a second, including the costs of gateways without requests."""
    parts: tuple[PartLoad, ...]

    @property
    def first(self) -> PartLoad:
        """The bottleneck: the part that is overloaded first when the load grows."""
        return max(self.parts, key=lambda part: part.share)


def fleet_plan(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, costs: FleetCosts
) -> FleetPlan:
    """Return the load of each part of the layout."""
    own = demand_of_busiest(demand, layout.deployments)
    request = request_traffic(own, layout.members, costs, layout.followers, cell=layout.deployments > 1)
    second = _with_idle(request.scaled(own.requests_per_second), own, layout, costs)
    parts = [
        *_redis_parts(own, layout, machines, request, second, costs),
        *_process_parts(own, layout, machines, request.changes, costs),
    ]
    if layout.deployments > 1:
        parts += shared_parts(demand, layout, machines, costs)
    return FleetPlan(demand=demand, layout=layout, request=request, second=second, parts=tuple(parts))


def demand_of_busiest(demand: FleetDemand, deployments: int) -> FleetDemand:
    """Return the load of the busiest deployment: a tenant belongs to one of them, by hash, with its blocks."""
    share = share_by_hash(demand.tenants, deployments)
    return replace(
        demand,
        requests_per_second=demand.requests_per_second * share,
        tenants=max(1, ceil(demand.tenants * share)),
        blocks=ceil(demand.blocks * share),
    )


def _with_idle(
    traffic: RedisTraffic, demand: FleetDemand, layout: FleetLayout, costs: FleetCosts
) -> RedisTraffic:
    workers, models = demand.workers, demand.models
    members = layout.members
    tips = (members - layout.followers) * costs.tip_commands
    loads = workers * costs.idle_bytes_out_per_worker if layout.queue_in_redis else 0.0
    joins = visits = 0.0
    if layout.queue_in_redis and layout.primaries > 1:
        queue_shards = min(layout.tenant_shards * models, QUEUE_SHARDS)
        joins = members * queue_shards * costs.idle_commands_per_queue_shard
        visits = queue_shards * costs.visit_commands if layout.tenant_shards > 1 else 0.0
    return replace(
        traffic,
        commands=traffic.commands + members * costs.idle_commands - tips + joins + visits,
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
    idle_commands = second.commands - demand.requests_per_second * request.commands
    idle_us = busiest * idle_commands * costs.redis_us_per_command
    remedy = "more primaries"
    if shares.queue > 1.2 / layout.primaries and layout.queue_in_redis and layout.primaries > 1:
        remedy += ", or the tenants of its largest models in more shards (queueing.tenant_shards)"
    yield PartLoad(
        name="CPU of the busiest Redis primary",
        used=(demand.requests_per_second * cpu_us + idle_us) / 1e6,
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
    quotas_bytes = quotas * demand.tenants * costs.redis_bytes_per_tenant if layout.deployments == 1 else 0.0
    yield PartLoad(
        name="memory of the fullest Redis primary",
        used=index * demand.blocks * costs.redis_bytes_per_block + quotas_bytes,
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
    followed = rate * changes * us_per_change(layout, costs) / 1e6
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


def shared_parts(
    demand: FleetDemand, layout: FleetLayout, machines: FleetMachines, costs: FleetCosts
) -> Iterator[PartLoad]:
    """Yield the load of the Redis that all deployments share: quotas, and their loads of the workers."""
    busiest = share_by_hash(demand.tenants, layout.shared_primaries)
    request = shared_traffic(demand, layout, costs)
    cpu_us = request.scripts * costs.redis_us_per_script + request.commands * costs.redis_us_per_command
    members = layout.gateways * layout.processes
    idle_us = members * costs.shared_idle_commands * costs.redis_us_per_command
    yield PartLoad(
        name="CPU of the Redis that all share",
        used=(busiest * demand.requests_per_second * cpu_us + idle_us) / 1e6,
        bound=machines.used_max,
        unit="cores",
        remedy="more primaries of the Redis that all deployments share",
    )
    published = (
        layout.deployments * (layout.deployments - 1) * demand.workers * costs.published_bytes_per_worker
    )
    published += members * members * costs.lease_bytes_per_gateway
    yield PartLoad(
        name="network of the Redis that all share",
        used=published + busiest * demand.requests_per_second * (request.bytes_in + request.bytes_out),
        bound=machines.network_bytes_per_second * machines.used_max,
        unit="bytes/s",
        remedy="fewer, larger deployments",
    )


def us_per_change(layout: FleetLayout, costs: FleetCosts) -> float:
    """Return how long the process that follows the index works for each change."""
    return costs.process_us_per_change if layout.processes == 1 else costs.process_us_per_published_change
