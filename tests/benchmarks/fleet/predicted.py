"""The prediction of `radixgate plan-fleet` for a load that was counted."""

from gateway.planning.costs import MEASURED
from gateway.planning.demand import FleetDemand, FleetLayout
from gateway.planning.shares import busiest_shares
from gateway.planning.traffic import RedisTraffic, request_traffic, shared_traffic
from tests.benchmarks.fleet.counts import FleetCounts
from tests.benchmarks.fleet.load import BLOCK_SIZE, FleetLoad

COMPARED = ("scripts", "commands", "changes", "bytes_in", "bytes_out")


def predicted_busiest(load: FleetLoad) -> float:
    """Return the commands of the busiest primary by the plan, as a multiple of their mean."""
    layout = FleetLayout(
        gateways=load.gateways,
        processes=1,
        primaries=load.primaries or 1,
        tenant_shards=load.tenant_shards,
    )
    return busiest_shares(_demand(load, load.requests_per_second, 0.0), layout, MEASURED).commands * (
        load.primaries or 1
    )


def predicted(load: FleetLoad, counts: FleetCounts) -> RedisTraffic | None:
    """Return what a request costs by the plan, at the rate that was reached; None for loads without a plan."""
    if load.serving or load.primaries:
        return None
    demand = _demand(load, counts.requests_per_second, counts.turns)
    return request_traffic(demand, load.gateways, MEASURED)


def predicted_in_cells(cells: int, load: FleetLoad) -> tuple[RedisTraffic, RedisTraffic]:
    """Return what a request costs its cell's Redis and the shared one by the plan; `load` is that of each cell."""
    layout = FleetLayout(gateways=cells * load.gateways, processes=1, primaries=1, deployments=cells)
    own, every = (_demand(load, load.requests_per_second * times, 0.0) for times in (1, cells))
    return request_traffic(own, load.gateways, MEASURED, cell=True), shared_traffic(every, layout, MEASURED)


def _demand(load: FleetLoad, requests_per_second: float, waiting: float) -> FleetDemand:
    blocks = load.new_blocks + load.shared_blocks
    return FleetDemand(
        requests_per_second=requests_per_second,
        workers=2 * load.models,
        tenants=load.tenants,
        models=load.models,
        blocks=load.requests * load.new_blocks,
        prompt_tokens=blocks * BLOCK_SIZE,
        shared_prefix=load.shared_blocks / blocks,
        waiting=waiting,
        block_size=BLOCK_SIZE,
        asking=waiting,
    )
