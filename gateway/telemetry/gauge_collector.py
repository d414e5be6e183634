"""Gauges of what is, read from the parts at each scrape."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Something that is, read when scraped: a name, a text, labels, and (label values, number) pairs."""

    name: str
    text: str
    read: Callable[[], Iterable[tuple[tuple[str, ...], float]]]
    labels: tuple[str, ...] = ()
    counter: bool = field(default=False)


class StateCollector(Collector):
    """All gauges, read at once."""

    def __init__(self, gauges: Iterable[Gauge]) -> None:
        self._gauges = tuple(gauges)

    def collect(self) -> Iterator[Metric]:
        for gauge in self._gauges:
            family: Any = CounterMetricFamily if gauge.counter else GaugeMetricFamily
            metric = family(f"radixgate_{gauge.name}", gauge.text, labels=gauge.labels)
            for labels, value in gauge.read():
                metric.add_metric(labels, value)
            yield metric
