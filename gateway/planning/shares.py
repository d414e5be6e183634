"""Shares of the busiest of several Redis primaries, or of several deployments, in the load."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from gateway.planning.costs import FleetCosts
from gateway.planning.demand import FleetDemand, FleetLayout
from gateway.planning.traffic import INDEX_SHARDS, queue_costs

QUEUE_SHARDS = 24
"""CLUSTER_SHARDS of gateway/queueing/shared/keys.py."""

NAMESPACE_SHARDS = 24
"""CLUSTER_PARTS of radix_cache/shared/keys.py."""


def share_of_busiest(units: int, places: int) -> float:
    """Return the share of the busiest place if `units` equal units are spread evenly."""
    return -(-units // places) / units


def share_by_hash(units: int, places: int) -> float:
    """Return the expected share of the busiest place if `units` equal units are placed by hash.

    The counts of the places are nearly normal; the expected largest of p of them is that of Blom: Statistical
    Estimates and Transformed Beta-Variables (1958).
    """
    mean = 1 / places
    if places == 1:
        return mean
    largest = NormalDist().inv_cdf((places - 0.375) / (places + 0.25))
    found = mean + largest * sqrt(mean * (1 - mean) / units)
    return min(1.0, max(found, share_of_busiest(units, places)))


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
    parts = [(index, costs.index)]
    if layout.deployments == 1:
        parts.append((quotas, costs.quotas))
    if layout.queue_in_redis:
        asking = 1.0 if layout.deployments > 1 else demand.asking
        parts.append((queue, queue_costs(costs, asking)))
    commands = sum(share * part.commands for share, part in parts) / sum(part.commands for _, part in parts)
    return BusiestShares(index=index, quotas=quotas, queue=queue, commands=commands)
