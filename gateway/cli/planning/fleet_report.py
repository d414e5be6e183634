"""Report of `radixgate plan-fleet`: a table of the traffic, a table of the parts' load, and the smallest layout."""

from rich import box
from rich.table import Table

from gateway.planning.demand import FleetLayout, FleetMachines
from gateway.planning.fleet_plan import FleetPlan, PartLoad

ROWS = (
    ("scripts", "scripts", "{:,.2f}"),
    ("commands, those in scripts included", "commands", "{:,.1f}"),
    ("bytes into Redis", "bytes_in", "{:,.0f}"),
    ("bytes out of Redis", "bytes_out", "{:,.0f}"),
    ("changes of the index", "changes", "{:,.1f}"),
    ("deliveries of changes to processes", "deliveries", "{:,.1f}"),
)
UNITS = {"bytes": (1e9, "GB"), "bytes/s": (1e6, "MB/s"), "cores": (1.0, "cores")}


def traffic_table(plan: FleetPlan) -> Table:
    """Return what one request costs Redis, and what all requests of the busiest deployment cost in a second."""
    layout = plan.layout
    drawn = _table(f"Redis, {layout_text(layout)}")
    drawn.add_column("", no_wrap=True)
    drawn.add_column("a request", justify="right")
    drawn.add_column("a second", justify="right")
    for shown, name, form in ROWS:
        drawn.add_row(
            shown,
            form.format(getattr(plan.request, name)),
            f"{getattr(plan.second, name):,.0f}",
        )
    return drawn


def parts_table(plan: FleetPlan, machines: FleetMachines) -> Table:
    """Return a table of the load of each part, beside its bound."""
    drawn = _table(f"Load of each part; its bound is {machines.used_max:.0%} of a core, a memory, a network")
    drawn.add_column("part", no_wrap=True)
    drawn.add_column("used", justify="right", no_wrap=True)
    drawn.add_column("bound", justify="right", no_wrap=True)
    drawn.add_column("share", justify="right")
    for part in plan.parts:
        factor, unit = UNITS[part.unit]
        drawn.add_row(
            part.name, f"{part.used / factor:,.2f} {unit}", f"{part.bound / factor:,.2f}", f"{part.share:.0%}"
        )
    return drawn


def bottleneck_note(plan: FleetPlan) -> str:
    """Return a sentence on whether the layout handles the load, and on its bottleneck."""
    first, rate = plan.first, plan.demand.requests_per_second
    shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:g}"
    if first.share > 1:
        return f"This layout cannot handle {shown} requests/s. {_bottleneck(first)}; remedy: {first.remedy}."
    return f"This layout handles {shown} requests/s. Next bottleneck: {first.name}, at {first.share:.0%}."


def layout_note(smallest: FleetPlan) -> str:
    """Return a sentence on the smallest layout that handles the load."""
    part = smallest.first
    return (
        f"The smallest layout that handles them: {layout_text(smallest.layout)}; the next bottleneck is the"
        f" {part.name}, at {part.share:.0%}."
    )


def fleet_figures(plan: FleetPlan) -> dict[str, float]:
    """Return all figures of a plan, by names that end in their units."""
    layout = plan.layout
    found: dict[str, float] = {
        "gateways": layout.gateways,
        "processes_per_gateway": layout.processes,
        "primaries": layout.primaries,
        "deployments": layout.deployments,
        "tenant_shards": layout.tenant_shards,
        "shared_primaries": layout.shared_primaries,
    }
    for _, name, _ in ROWS:
        found[f"{name}_per_request"] = getattr(plan.request, name)
        found[f"{name}_per_second"] = getattr(plan.second, name)
    for part in plan.parts:
        found[f"{_slug(part.name)}_share"] = part.share
    return found


def layout_text(layout: FleetLayout) -> str:
    """Return a layout as text."""
    gateways = (
        f"{layout.gateways} x {layout.processes} processes" if layout.processes > 1 else f"{layout.gateways}"
    )
    redis = f"{layout.primaries} Redis primaries" if layout.primaries > 1 else "one Redis server"
    if layout.tenant_shards > 1:
        redis += f", tenants in {layout.tenant_shards} shards"
    if layout.deployments == 1:
        return f"gateways: {gateways}, {redis}"
    shared = f"{layout.shared_primaries} primaries" if layout.shared_primaries > 1 else "one Redis server"
    return (
        f"{layout.deployments} deployments; gateways in all: {gateways}; {redis} in each, {shared} for quotas"
    )


def _bottleneck(part: PartLoad) -> str:
    factor, unit = UNITS[part.unit]
    return f"Bottleneck: {part.name}, {part.used / factor:,.2f} of {part.bound / factor:,.2f} {unit}"


def _slug(name: str) -> str:
    return name.lower().replace(":", "").replace(" ", "_")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
