"""Gauges of the gateway's present state, read from its parts at each scrape."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A metric with values that are read when it is scraped."""

    name: str
    """The metric name without the prefix `radixgate_`."""

    text: str
    """The HELP text."""

    read: Callable[[], Iterable[tuple[tuple[str, ...], float]]]
    """Returns pairs of label values and a number."""

    labels: tuple[str, ...] = ()
    """The label names."""

    counter: bool = field(default=False)
    """Whether the values are counts that only rise."""


class StateCollector(Collector):
    """A Prometheus collector of gauges, which are all read at each scrape."""

    def __init__(self, gauges: Iterable[Gauge]) -> None:
        self._gauges = tuple(gauges)

    def collect(self) -> Iterator[Metric]:
        """Read all gauges and yield them as metric families."""
        for gauge in self._gauges:
            family: Any = CounterMetricFamily if gauge.counter else GaugeMetricFamily
            metric = family(f"radixgate_{gauge.name}", gauge.text, labels=gauge.labels)
            for labels, value in gauge.read():
                metric.add_metric(labels, value)
            yield metric
