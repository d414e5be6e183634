"""Sets up a gateway in a cell: opens its relay to the other cells (gateway/web/cell_relay.py), and joins them."""

from contextlib import AsyncExitStack

from gateway.app import Gateway
from gateway.cells.hop import HopSignature
from gateway.process.secrets import deployment_secret
from gateway.telemetry.metric_families import StateCollector
from gateway.web.cell_relay import CellRelay
from gateway.wiring.cell_gauges import cell_gauges


def open_cell_relay(gateway: Gateway, stack: AsyncExitStack) -> CellRelay | None:
    """Return the relay, which the stack closes; None without cells."""
    if gateway.cells is None:
        return None
    relay = CellRelay(gateway.cells.living, HopSignature(deployment_secret(gateway.settings)))
    stack.push_async_callback(relay.close)
    counted = cell_gauges(gateway.cells.living, relay.relayed, relay.unreached)
    gateway.metrics.register(StateCollector(counted))
    return relay


async def join_cells(gateway: Gateway) -> None:
    """Announce this gateway, which has opened its listeners, to the gateways of all cells."""
    if gateway.cells is not None:
        await gateway.cells.living.renew()
        gateway.supervisor.start("cells", gateway.cells.living.run)
