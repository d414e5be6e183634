"""The usual kinds of gauges: with one value, and with one value for each worker."""

from collections.abc import Callable

from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.telemetry.gauge_collector import Gauge

Reading = tuple[tuple[str, ...], float]
"""The values of a gauge's labels, and its value."""


def single_gauge(name: str, text: str, read: Callable[[], float], *, counter: bool = False) -> Gauge:
    """Return a gauge with one value and no labels."""
    return Gauge(name=name, text=text, read=lambda: [((), read())], counter=counter)


def worker_gauge(
    fleet: Fleet, name: str, text: str, read: Callable[[Worker], float], *, counter: bool = False
) -> Gauge:
    """Return a gauge with a value for each worker of the fleet."""

    def read_all() -> list[Reading]:
        return [((w.id,), read(w)) for w in fleet]

    return Gauge(name=name, text=text, labels=("worker",), read=read_all, counter=counter)
