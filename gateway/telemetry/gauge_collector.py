"""Metrics that are read from the gateway's parts at each scrape: gauges, counters and histograms."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.telemetry.histogram import HistogramCounters


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

    @property
    def kind(self) -> str:
        """The metric type, as Prometheus names it."""
        return "counter" if self.counter else "gauge"

    def collect(self) -> Metric:
        """Read the values and return them as a metric family."""
        family = CounterMetricFamily if self.counter else GaugeMetricFamily
        metric = family(f"radixgate_{self.name}", self.text, labels=self.labels)
        for labels, value in self.read():
            metric.add_metric(labels, value)
        return metric


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramFamily:
    """A metric with histograms that are read when it is scraped."""

    name: str
    """The metric name without the prefix `radixgate_`."""

    text: str
    """The HELP text."""

    read: Callable[[], Iterable[tuple[tuple[str, ...], HistogramCounters]]]
    """Returns pairs of label values and a histogram."""

    labels: tuple[str, ...] = ()
    """The label names."""

    @property
    def kind(self) -> str:
        """The metric type, as Prometheus names it."""
        return "histogram"

    def collect(self) -> Metric:
        """Read the histograms and return them as a metric family."""
        metric = HistogramMetricFamily(f"radixgate_{self.name}", self.text, labels=self.labels)
        for labels, counters in self.read():
            buckets = tuple(zip(_bucket_names(counters.bounds), accumulate(counters.counts), strict=True))
            metric.add_metric(labels, buckets, counters.sum)
        return metric


class StateCollector(Collector):
    """A Prometheus collector of metrics that are all read at each scrape."""

    def __init__(self, families: Iterable[Gauge | HistogramFamily]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterator[Metric]:
        """Read all metrics and yield them as metric families."""
        for family in self._families:
            yield family.collect()


@cache
def _bucket_names(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the values of the label `le`; there are as many sets of bounds as constants in the code."""
    return (*map(floatToGoString, bounds), "+Inf")
