"""Calculates the load of a fleet of gateways on Redis: scripts, commands, bytes and deliveries a second."""

import math
from dataclasses import dataclass

from gateway.planning.costs import FleetCosts, PartCosts
from gateway.planning.demand import FleetDemand, FleetLayout

INDEX_SHARDS = 48
"""SHARDS of radix_cache/shared/keys.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTraffic:
    """The cost for the Redis of a deployment: of one request on average, or of all requests in a second."""

    scripts: float
    commands: float
    """Including those inside scripts."""
    bytes_in: float
    bytes_out: float
    changes: float
    deliveries: float
    """Changes times the processes that they are sent to, one of each gateway."""

    def scaled(self, factor: float) -> "RedisTraffic":
        """Return this traffic, multiplied by `factor`."""
        return RedisTraffic(
            scripts=self.scripts * factor,
            commands=self.commands * factor,
            bytes_in=self.bytes_in * factor,
            bytes_out=self.bytes_out * factor,
            changes=self.changes * factor,
            deliveries=self.deliveries * factor,
        )


def queue_costs(costs: FleetCosts, asking: float) -> PartCosts:
    """Return the mean costs of a request in the shared queue, if this share of requests calls it for turns."""
    own, asked = costs.queue_own, costs.queue
    return PartCosts(
        commands=own.commands + asking * (asked.commands - own.commands),
        bytes_in=own.bytes_in + asking * (asked.bytes_in - own.bytes_in),
        bytes_out=own.bytes_out + asking * (asked.bytes_out - own.bytes_out),
    )


def request_traffic(
    demand: FleetDemand, members: int, costs: FleetCosts, followers: int | None = None, *, cell: bool = False
) -> RedisTraffic:
    """Return what one request costs a Redis that `members` gateway processes share.

    `followers` of them follow the index; None: all. `cell`: it is the Redis of one cell, without quotas.
    """
    followers = members if followers is None else followers
    shared = members > 1 or cell
    waiting = demand.waiting if shared else 0.0  # A single process without cells keeps its queue in memory.
    parts = [costs.index if shared else costs.index_alone]
    if not cell:
        parts.append(costs.quotas)
    asking = 1.0 if cell else demand.asking
    if shared:
        parts.append(queue_costs(costs, asking))
    rate = demand.requests_per_second / members
    scripts = scripts_per_request(rate, shared=shared, asking=asking, costs=costs)
    scripts += waiting * costs.turn_moments
    new_blocks = demand.new_blocks
    turn_commands = costs.turn.commands + members * costs.turn_commands_per_process
    turn_bytes = costs.turn.bytes_out + members * costs.turn_bytes_per_process
    if shared:
        changes, pushed = costs.changes, costs.bytes_of_changes + new_blocks * costs.bytes_per_new_block
        written = new_blocks * costs.bytes_in_per_new_block
    else:
        written = new_blocks * costs.bytes_per_new_block_alone
        changes, pushed = costs.changes_alone, costs.bytes_of_changes_alone + written
    bytes_in = scripts * costs.bytes_in_per_script + written
    if demand.shared_prefix:
        pushed += costs.bytes_per_shared_prefix
        bytes_in += costs.bytes_in_per_shared_prefix
    return RedisTraffic(
        scripts=scripts,
        commands=scripts + sum(part.commands for part in parts) + waiting * turn_commands,
        bytes_in=bytes_in + sum(part.bytes_in for part in parts) + waiting * costs.turn.bytes_in,
        bytes_out=sum(part.bytes_out for part in parts) + followers * pushed + waiting * turn_bytes,
        changes=changes,
        deliveries=changes * followers,
    )


def shared_traffic(demand: FleetDemand, layout: FleetLayout, costs: FleetCosts) -> RedisTraffic:
    """Return what one request costs the Redis that all deployments share, which has the quotas."""
    rate = demand.requests_per_second / (layout.gateways * layout.processes)
    scripts = scripts_per_request(rate, shared=False, costs=costs)
    return RedisTraffic(
        scripts=scripts,
        commands=scripts + costs.quotas.commands,
        bytes_in=scripts * costs.bytes_in_per_script + costs.quotas.bytes_in,
        bytes_out=costs.quotas.bytes_out,
        changes=0.0,
        deliveries=0.0,
    )


def scripts_per_request(
    requests_per_second: float, *, shared: bool, costs: FleetCosts, asking: float = 1.0
) -> float:
    """Return how many scripts a request costs in a process with this rate.

    `asking`: the share of requests that call the shared queue for their turns; calls of the others are not urgent.

    Calls that need no immediate answer are sent `coalesced_seconds` after the first of them, or with an urgent one:

        urgent calls U/s, others V/s, d seconds:  U + exp(-U d) / (1 / V + (1 - exp(-U d)) / U)   scripts/s
    """
    delay = costs.coalesced_seconds
    others = requests_per_second * (costs.moments_shared if shared else costs.moments_alone)
    if not others:
        return 0.0
    moments = requests_per_second * costs.urgent_moments if shared else 0.0
    others, urgent = others + (1 - asking) * moments, asking * moments
    missed = math.exp(-urgent * delay)
    waited = (1 - missed) / urgent if urgent else delay
    return (urgent + missed / (1 / others + waited)) / requests_per_second
