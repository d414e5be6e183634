"""The metric with the version that runs."""

import platform

from gateway.telemetry.metric_families import GaugeFamily


def build_info(version: str) -> GaugeFamily:
    """Return the metric `radixgate_build_info`, which is always 1."""
    return GaugeFamily(
        name="radixgate_build_info",
        text="Always 1; the labels show the versions of radixgate and of Python.",
        labels=("version", "python"),
        read=lambda: [((version, platform.python_version()), 1.0)],
    )
