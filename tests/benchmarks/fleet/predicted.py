"""What `radixgate plan-fleet` says of a load that was counted."""

from gateway.planning.costs import MEASURED
from gateway.planning.demand import FleetDemand
from gateway.planning.traffic import RedisTraffic, request_traffic
from tests.benchmarks.fleet.counts import FleetCounts
from tests.benchmarks.fleet.load import BLOCK_SIZE, FleetLoad

COMPARED = ("scripts", "commands", "changes", "bytes_in", "bytes_out")


def predicted(load: FleetLoad, counts: FleetCounts) -> RedisTraffic | None:
    """Return what a request costs by the plan, at the rate that was reached; None for loads without a plan."""
    if load.serving or load.primaries:
        return None
    blocks = load.new_blocks + load.shared_blocks
    demand = FleetDemand(
        requests_per_second=counts.requests_per_second,
        workers=2 * load.models,
        tenants=load.tenants,
        models=load.models,
        blocks=load.requests * load.new_blocks,
        prompt_tokens=blocks * BLOCK_SIZE,
        shared_prefix=load.shared_blocks / blocks,
        waiting=counts.turns,
        block_size=BLOCK_SIZE,
    )
    return request_traffic(demand, load.gateways, MEASURED)
