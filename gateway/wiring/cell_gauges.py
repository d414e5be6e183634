"""Gauges of cells: which are alive, and the requests that are relayed to them."""

from collections.abc import Iterable, Mapping

from gateway.cells.living_cells import LivingCells
from gateway.telemetry.metric_families import CounterFamily, ValueFamily
from gateway.wiring.gauge_kinds import Reading, single_gauge


def cell_gauges(
    living: LivingCells, relayed: Mapping[str, int], unreached: Mapping[str, int]
) -> tuple[ValueFamily, ...]:
    """Return the gauges of a gateway that is in a cell; counts are by the name of the other cell."""

    def of_relays() -> Iterable[Reading]:
        counted = (("relayed", relayed), ("unreached", unreached))
        return [
            ((cell, outcome), float(count)) for outcome, counts in counted for cell, count in counts.items()
        ]

    return (
        single_gauge(
            "radixgate_cells_alive",
            "Cells (groups of gateways) that are alive, by the list that this gateway has.",
            lambda: len(living.cells),
        ),
        single_gauge(
            "radixgate_cells_redis_up",
            "The Redis that all cells share: 1 if it answers, 0 if the last list of cells holds.",
            lambda: living.up,
        ),
        CounterFamily(
            name="radixgate_cell_requests_total",
            text="Requests of tenants of another cell: `relayed` to it, or served here because it was `unreached`.",
            labels=("cell", "outcome"),
            read=of_relays,
        ),
    )
