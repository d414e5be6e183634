"""The usual kinds of metrics: with one value, and with one value for each worker."""

from collections.abc import Callable

from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.telemetry.metric_families import CounterFamily, GaugeFamily

Reading = tuple[tuple[str, ...], float]
"""The values of a metric's labels, and its number."""


def single_gauge(name: str, text: str, read: Callable[[], float]) -> GaugeFamily:
    """Return a gauge with one value and no labels."""
    return GaugeFamily(name=name, text=text, read=lambda: [((), read())])


def single_counter(name: str, text: str, read: Callable[[], float]) -> CounterFamily:
    """Return a counter with one value and no labels."""
    return CounterFamily(name=name, text=text, read=lambda: [((), read())])


def worker_gauge(fleet: Fleet, name: str, text: str, read: Callable[[Worker], float]) -> GaugeFamily:
    """Return a gauge with a value for each worker of the fleet."""
    return GaugeFamily(name=name, text=text, labels=("worker",), read=lambda: _of_workers(fleet, read))


def worker_counter(fleet: Fleet, name: str, text: str, read: Callable[[Worker], float]) -> CounterFamily:
    """Return a counter with a value for each worker of the fleet."""
    return CounterFamily(name=name, text=text, labels=("worker",), read=lambda: _of_workers(fleet, read))


def _of_workers(fleet: Fleet, read: Callable[[Worker], float]) -> list[Reading]:
    return [((worker.id,), read(worker)) for worker in fleet]
