"""The results of the ladder as lines of a table, as a plot, and as values for JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.engine.ablation.measurement import LadderResult

COLUMNS = {
    "time s": ("seconds", "all requests, first arrival to last token"),
    "tokens/s": ("tokens_per_second", "output tokens in that time"),
    "TTFT p50": ("ttft_ms_p50", "arrival to first token, ms"),
    "p99": ("ttft_ms_p99", ""),
    "ITL p50": ("itl_ms_p50", "gap between two outputs of a stream, ms"),
    "p99 ": ("itl_ms_p99", ""),
    "rows": ("rows", "sequences that advanced in a step, on average"),
    "KV MB": ("kv_megabytes_max", "most KV memory occupied"),
    "lost": ("kv_lost", "share of the occupied KV memory that held no token, on average"),
    "computed": ("computed_tokens", "token positions computed by the model"),
    "useful": ("useful", "share of them with a result that was used"),
}
_DIGITS = {"seconds": 2, "kv_megabytes_max": 2, "useful": 2, "kv_lost": 2, "rows": 1}
_DIGITS |= {"ttft_ms_p50": 1, "ttft_ms_p99": 1, "itl_ms_p50": 1, "itl_ms_p99": 1}

PLOTS = (
    ("seconds", "Time for all requests (s)"),
    ("tokens_per_second", "Output tokens per second"),
    ("ttft_ms_p99", "TTFT p99 (ms)"),
    ("itl_ms_p99", "ITL p99 (ms)"),
    ("kv_megabytes_max", "Most KV memory occupied (MB)"),
    ("useful", "Share of computed positions that was used"),
)


class PlotImpossible(Exception):
    """Raised when matplotlib is missing or the file cannot be written."""


def values(result: LadderResult, bytes_per_token: int) -> dict[str, Any]:
    """Return all values of one rung; the names have the units."""
    return {
        "seconds": result.seconds,
        "cpu_seconds": result.cpu_seconds,
        "tokens_per_second": result.tokens_per_second,
        "output_tokens": result.output_tokens,
        "steps": result.steps,
        "ttft_ms_p50": 1e3 * result.percentile(result.ttft, 0.5),
        "ttft_ms_p99": 1e3 * result.percentile(result.ttft, 0.99),
        "itl_ms_p50": 1e3 * result.percentile(result.itl, 0.5),
        "itl_ms_p99": 1e3 * result.percentile(result.itl, 0.99),
        "rows": result.rows,
        "kv_tokens_max": result.kv_tokens_max,
        "kv_megabytes_max": result.kv_tokens_max * bytes_per_token / 1e6,
        "kv_lost": result.kv_lost,
        "computed_tokens": result.computed,
        "useful": result.useful,
        "cached_tokens": result.cached_tokens,
        "accepted_length": result.accepted_length,
        "preemptions": result.preemptions,
        **{f"wasted_{reason}_tokens": count for reason, count in result.wasted.items()},
    }


def heading(width: int) -> str:
    """Return the first line of the table; `width` is that of the names."""
    return " " * width + "".join(f"{title.strip():>10}" for title in COLUMNS)


def line(name: str, run: Mapping[str, Any], width: int) -> str:
    """Return the line of one rung."""
    cells = (f"{run[key]:>10,.{_DIGITS.get(key, 0)}f}" for key, _ in COLUMNS.values())
    return f"{name:<{width}}" + "".join(cells)


def legend() -> str:
    """Return the explanation of each column."""
    return "\n".join(f"  {title:<9} {meaning}" for title, (_, meaning) in COLUMNS.items() if meaning)


def plot(runs: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    """Draw six panels of bars into `file` (.png, .svg or .pdf). Raises PlotImpossible."""
    try:
        # pyplot is avoided because it keeps every figure and looks for a display.
        from matplotlib.figure import Figure
    except ImportError as err:
        raise PlotImpossible("drawing needs matplotlib; install it, or the extra `plots`") from err
    figure = Figure(figsize=(12, 7), layout="constrained")
    for index, (key, title) in enumerate(PLOTS):
        panel = figure.add_subplot(2, 3, index + 1)
        bars = panel.barh(list(runs), [run[key] for run in runs.values()], color="#4477aa")
        panel.bar_label(bars, fmt=f"%.{_DIGITS.get(key, 0)}f", padding=2, fontsize=8)
        panel.set_title(title, fontsize=10)
        panel.invert_yaxis()
        panel.margins(x=0.18)
        panel.tick_params(labelsize=8)
        if index % 3:
            panel.set_yticklabels([])
    try:
        figure.savefig(file)
    except (OSError, ValueError) as err:
        raise PlotImpossible(f"{file} cannot be written: {err}") from err
