"""What was measured, for people and for programs."""

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
    "KV MB": ("kv_megabytes_max", "KV memory taken, at most"),
    "lost": ("kv_lost", "of it, the share that held no token, on average"),
    "computed": ("computed_tokens", "token positions that went through the model"),
    "useful": ("useful", "of them, the share that was needed"),
}
_DIGITS = {"seconds": 2, "kv_megabytes_max": 2, "useful": 2, "kv_lost": 2, "rows": 1}
_DIGITS |= {"ttft_ms_p50": 1, "ttft_ms_p99": 1, "itl_ms_p50": 1, "itl_ms_p99": 1}

PLOTS = (
    ("seconds", "Time for all requests (s)"),
    ("tokens_per_second", "Output tokens per second"),
    ("ttft_ms_p99", "TTFT p99 (ms)"),
    ("itl_ms_p99", "ITL p99 (ms)"),
    ("kv_megabytes_max", "KV memory taken at most (MB)"),
    ("useful", "Share of the computed that was needed"),
)


class PlotImpossible(Exception):
    """Nothing to draw with, or nowhere to draw to."""


def values(figures: LadderResult, bytes_per_token: int) -> dict[str, Any]:
    """Everything about one rung, units in the names."""
    return {
        "seconds": figures.seconds,
        "cpu_seconds": figures.cpu_seconds,
        "tokens_per_second": figures.tokens_per_second,
        "output_tokens": figures.output_tokens,
        "steps": figures.steps,
        "ttft_ms_p50": 1e3 * figures.percentile(figures.ttft, 0.5),
        "ttft_ms_p99": 1e3 * figures.percentile(figures.ttft, 0.99),
        "itl_ms_p50": 1e3 * figures.percentile(figures.itl, 0.5),
        "itl_ms_p99": 1e3 * figures.percentile(figures.itl, 0.99),
        "rows": figures.rows,
        "kv_tokens_max": figures.kv_tokens_max,
        "kv_megabytes_max": figures.kv_tokens_max * bytes_per_token / 1e6,
        "kv_lost": figures.kv_lost,
        "computed_tokens": figures.computed,
        "useful": figures.useful,
        "cached_tokens": figures.cached_tokens,
        "accepted_length": figures.accepted_length,
        "preemptions": figures.preemptions,
        **{f"wasted_{reason}_tokens": count for reason, count in figures.wasted.items()},
    }


def table(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """One line a rung; what each column says stands below."""
    width = max(map(len, runs))
    lines = [" " * width + "".join(f"{title.strip():>10}" for title in COLUMNS)]
    for name, run in runs.items():
        cells = (f"{run[key]:>10,.{_DIGITS.get(key, 0)}f}" for key, _ in COLUMNS.values())
        lines.append(f"{name:<{width}}" + "".join(cells))
    lines.append("")
    lines += [f"  {title:<9} {meaning}" for title, (_, meaning) in COLUMNS.items() if meaning]
    return "\n".join(lines)


def plot(runs: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    """Six panels of bars into `file` (.png, .svg, .pdf); PlotImpossible says why not."""
    try:
        # Not pyplot: it keeps every figure and looks for a display.
        from matplotlib.figure import Figure
    except ImportError as err:
        raise PlotImpossible("drawing needs matplotlib; install it, or the extra `plots`") from err
    figure = Figure(figsize=(12, 7), layout="constrained")
    for place, (key, title) in enumerate(PLOTS):
        panel = figure.add_subplot(2, 3, place + 1)
        bars = panel.barh(list(runs), [run[key] for run in runs.values()], color="#4477aa")
        panel.bar_label(bars, fmt=f"%.{_DIGITS.get(key, 0)}f", padding=2, fontsize=8)
        panel.set_title(title, fontsize=10)
        panel.invert_yaxis()
        panel.margins(x=0.18)
        panel.tick_params(labelsize=8)
        if place % 3:
            panel.set_yticklabels([])
    try:
        figure.savefig(file)
    except (OSError, ValueError) as err:
        raise PlotImpossible(f"{file} cannot be written: {err}") from err
