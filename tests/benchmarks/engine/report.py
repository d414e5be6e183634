"""Tables of the figures."""

from collections.abc import Mapping

from rich.table import Table

from tests.benchmarks.engine.mixed import SHAPES
from tests.benchmarks.engine.speed import BATCHES
from tests.benchmarks.report import new_table, number

Figures = Mapping[str, float]


def speed_table(model: str, ours: Figures, theirs: Figures) -> Table:
    """Return tokens per second of both sides, and the engine's as a multiple of `generate`'s, by both clocks."""
    drawn = new_table(
        f"{model}: tokens per second beside `generate`",
        ("work",),
        ("ours", "generate", "ratio", "ratio by CPU time", "of bandwidth"),
    )
    for phase in ("prefill", "decode"):
        for batch in BATCHES:
            key = f"{phase}_{batch}"
            share = ours.get(f"{key}_bandwidth_share")
            drawn.add_row(
                f"{phase}, batch {batch}",
                number(ours[f"{key}_tokens_per_second"], 0),
                number(theirs[f"{key}_tokens_per_second"], 0),
                *_ratios(ours, theirs, key),
                "" if share is None else f"{100 * share:.0f} %",
            )
        drawn.add_section()
    return drawn


def mixed_table(model: str, runs: Mapping[str, Figures], theirs: str) -> Table:
    """Return the figures of mixed lengths of all sides, each beside `generate`."""
    drawn = new_table(
        f"{model}: mixed lengths that arrive over time",
        ("traffic", "side"),
        ("tokens/s", "ratio", "ratio by CPU time", "TTFT p50, ms", "p99"),
    )
    for traffic in SHAPES:
        for side, figures in runs.items():
            drawn.add_row(
                traffic.replace("_", " "),
                side,
                number(figures[f"{traffic}_tokens_per_second"], 0),
                *_ratios(figures, runs[theirs], traffic),
                number(figures[f"{traffic}_ttft_ms_p50"], 0),
                number(figures[f"{traffic}_ttft_ms_p99"], 0),
            )
        drawn.add_section()
    return drawn


def _ratios(ours: Figures, theirs: Figures, key: str) -> tuple[str, str]:
    rate, cpu = f"{key}_tokens_per_second", f"{key}_cpu_ms_per_token"
    return f"{ours[rate] / theirs[rate]:.2f} x", f"{theirs[cpu] / ours[cpu]:.2f} x"


def ideas_table(model: str, figures: Figures) -> Table:
    """Return a row for each idea: with the idea, and without it."""
    drawn = new_table(f"{model}: single ideas", ("idea", "figure"), ("with it", "without it"))
    for idea, what, key, other, digits in (
        ("prefix cache", "TTFT, ms (all but 64 tokens cached)", "ttft_ms_hit", "ttft_ms_cold", 1),
        ("prefix cache", "TTFT, ms (beside a prompt of 64)", "ttft_ms_hit", "ttft_ms_suffix_alone", 1),
        ("chunked prefill", "longest gap of running streams, ms", "itl_ms_max_chunks", "itl_ms_max_whole", 1),
        ("chunked prefill", "median gap, ms", "itl_ms_p50_chunks", "itl_ms_p50_whole", 1),
        (
            "a long context among short ones",
            "decode step, ms; without: apart",
            "step_ms_together",
            "step_ms_apart",
            2,
        ),
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
