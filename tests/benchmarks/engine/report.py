"""Figures to tables."""

from collections.abc import Mapping

from rich.table import Table

from tests.benchmarks.engine.speed import BATCHES
from tests.benchmarks.report import new_table, number

Figures = Mapping[str, float]


def speed_table(model: str, runs: Mapping[str, Figures], ours: str, theirs: str) -> Table:
    """Tokens per second of each, and ours as a multiple of theirs, by the wall and by the processor."""
    drawn = new_table(
        f"{model}: tokens per second beside `{theirs}`",
        ("work",),
        ("ours", theirs, "ratio", "ratio by CPU time", "of bandwidth"),
    )
    rows = {"prefill": "prefill", **{f"decode_{batch}": f"decode, batch {batch}" for batch in BATCHES}}
    for key, title in rows.items():
        drawn.add_row(title, *_compared(runs[ours], runs[theirs], key))
    drawn.add_section()
    for subject in (name for name in runs if name != theirs):
        drawn.add_row(f"mixed arrivals, {subject}", *_compared(runs[subject], runs[theirs], "mixed"))
    return drawn


def _compared(ours: Figures, theirs: Figures, key: str) -> tuple[str, ...]:
    rate, cpu = f"{key}_tokens_per_second", f"{key}_cpu_ms_per_token"
    share = ours.get(f"{key}_bandwidth_share")
    return (
        number(ours[rate], 0),
        number(theirs[rate], 0),
        f"{ours[rate] / theirs[rate]:.2f} x",
        f"{theirs[cpu] / ours[cpu]:.2f} x",
        f"{100 * share:.0f} %" if share is not None else "",
    )


def ideas_table(model: str, figures: Figures) -> Table:
    """One line for each idea: with it, and without it."""
    drawn = new_table(f"{model}: single ideas", ("idea", "figure"), ("with it", "without it"))
    for idea, what, key, other, digits in (
        ("prefix cache", "TTFT, ms (all but 64 tokens cached)", "ttft_ms_hit", "ttft_ms_cold", 1),
        ("prefix cache", "TTFT, ms (beside a prompt of 64)", "ttft_ms_hit", "ttft_ms_suffix_alone", 1),
        ("chunked prefill", "longest gap of running streams, ms", "itl_ms_max_chunks", "itl_ms_max_whole", 1),
        ("chunked prefill", "median gap, ms", "itl_ms_p50_chunks", "itl_ms_p50_whole", 1),
        ("continuous batching", "rows of 8 that advance", "rows_of_8_continuous", "rows_of_8_static", 1),
        (
            "continuous batching",
            "tokens per second",
            "tokens_per_second_continuous",
            "tokens_per_second_static",
            0,
        ),
        ("continuous batching", "share of work needed", "useful_continuous", "useful_static", 2),
    ):
        drawn.add_row(idea, what, number(figures[key], digits), number(figures[other], digits))
    return drawn
