"""Facts about the machine and the installed versions, which every result file contains."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine() -> dict[str, str | int]:
    """Return the processor, the number of cores that this process may use, the memory in bytes, and the system."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, radixgate, and the given packages that are installed."""
    found = {"python": platform.python_version()}
    for package in ("radixgate", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
