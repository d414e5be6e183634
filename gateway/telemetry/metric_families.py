"""Metric families, whose values are read from the gateway's parts at each scrape: gauges, counters, histograms."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import ClassVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from gateway.telemetry.histogram import HistogramCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFamily:
    """A metric with one number for each set of label values."""

    kind: ClassVar[str]
    """The metric type, as Prometheus names it."""
    made_with: ClassVar[type[GaugeMetricFamily | CounterMetricFamily]]

    name: str
    """The metric name."""

    text: str
    """The HELP text."""

    read: Callable[[], Iterable[tuple[tuple[str, ...], float]]]
    """Returns pairs of label values and a number."""

    labels: tuple[str, ...] = ()
    """The label names."""

    def collect(self) -> Metric:
        """Read the values and return them as a metric family of prometheus_client."""
        metric = self.made_with(self.name, self.text, labels=self.labels)
        for labels, value in self.read():
            metric.add_metric(labels, value)
        return metric


class GaugeFamily(ValueFamily):
    """A metric whose numbers rise and fall."""

    __slots__ = ()

    kind = "gauge"
    made_with = GaugeMetricFamily


class CounterFamily(ValueFamily):
    """A metric whose numbers only rise; its name ends in `_total`."""

    __slots__ = ()

    kind = "counter"
    made_with = CounterMetricFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramFamily:
    """A metric with one histogram for each set of label values."""

    kind: ClassVar[str] = "histogram"
    """The metric type, as Prometheus names it."""

    name: str
    """The metric name."""

    text: str
    """The HELP text."""

    read: Callable[[], Iterable[tuple[tuple[str, ...], HistogramCounters]]]
    """Returns pairs of label values and a histogram."""

    labels: tuple[str, ...] = ()
    """The label names."""

    def collect(self) -> Metric:
        """Read the histograms and return them as a metric family of prometheus_client."""
        metric = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for labels, counters in self.read():
            metric.add_metric(labels, _buckets(counters), counters.sum)
        return metric


MetricFamily = ValueFamily | HistogramFamily


class StateCollector(Collector):
    """A Prometheus collector of metrics that are all read at each scrape."""

    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterator[Metric]:
        """Read all metrics and yield them as metric families."""
        for family in self._families:
            yield family.collect()


def without_labels(family: MetricFamily, dropped: Collection[str]) -> MetricFamily:
    """Return the family without these labels: series that differ in these labels only are added up.

    Do not drop labels of a gauge whose values do not add up.
    """
    kept = tuple(at for at, label in enumerate(family.labels) if label not in dropped)
    if len(kept) == len(family.labels):
        return family
    labels = tuple(family.labels[at] for at in kept)
    if isinstance(family, ValueFamily):
        return replace(family, labels=labels, read=lambda: _added_up(family.read(), kept))
    return replace(family, labels=labels, read=lambda: _merged(family.read(), kept))


def _added_up(
    series: Iterable[tuple[tuple[str, ...], float]], kept: tuple[int, ...]
) -> Iterable[tuple[tuple[str, ...], float]]:
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in series:
        left = tuple(labels[at] for at in kept)
        sums[left] = sums.get(left, 0) + value
    return sums.items()


def _merged(
    series: Iterable[tuple[tuple[str, ...], HistogramCounters]], kept: tuple[int, ...]
) -> Iterable[tuple[tuple[str, ...], HistogramCounters]]:
    merged: dict[tuple[str, ...], HistogramCounters] = {}
    for labels, counters in series:
        left = tuple(labels[at] for at in kept)
        if left not in merged:
            merged[left] = HistogramCounters(counters.bounds)
        merged[left].add(counters)
    return merged.items()


def _buckets(counters: HistogramCounters) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Return name, count and exemplar of each bucket; OpenMetrics shows exemplars, the older format does not."""
    buckets = zip(_bucket_names(counters.bounds), accumulate(counters.counts), strict=True)
    exemplars = counters.exemplars
    return [
        (name, count, Exemplar({"trace_id": found[0]}, found[1], found[2]))
        if exemplars and (found := exemplars.get(number))
        else (name, count)
        for number, (name, count) in enumerate(buckets)
    ]


@cache
def _bucket_names(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the values of the label `le`; there are as many sets of bounds as constants in the code."""
    return (*map(floatToGoString, bounds), "+Inf")
