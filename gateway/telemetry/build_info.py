"""The metric with the version that runs."""

import platform

from gateway.telemetry.gauge_collector import Gauge


def build_info(version: str) -> Gauge:
    """Return the metric `radixgate_build_info`, which is always 1."""
    return Gauge(
        name="build_info",
        text="Always 1; the labels show the versions of radixgate and of Python.",
        labels=("version", "python"),
        read=lambda: [((version, platform.python_version()), 1.0)],
    )
