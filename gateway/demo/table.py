"""The table of the demo: both policies side by side with their ratio, for all tenants and for each."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

Figures = Mapping[str, Any]
Runs = Mapping[str, Mapping[str, Any]]

ROWS = (
    ("requests", "requests", "{:,.0f}"),
    ("prompt tokens", "prompt_tokens", "{:,.0f}"),
    ("cached tokens", "cached_tokens", "{:,.0f}"),
    ("hit ratio", "hit_ratio", "{:.1%}"),
    ("hit ratio possible", "possible_hit_ratio", "{:.1%}"),
    ("TTFT p50", "ttft_ms_p50", "{:,.0f} ms"),
    ("TTFT p95", "ttft_ms_p95", "{:,.0f} ms"),
    ("TPOT p50", "tpot_ms_p50", "{:,.1f} ms"),
    ("ITL p50", "itl_ms_p50", "{:,.1f} ms"),
    ("output tokens/s", "tokens_per_second", "{:,.0f}"),
    ("goodput requests/s", "goodput_requests_per_second", "{:,.2f}"),
)

RATIOS = ("hit_ratio", "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tokens_per_second")


def comparison_table(runs: Runs) -> Table:
    """Return the table, at most 80 columns wide. The ratio is that of the last policy to the first."""
    first, *_, last = runs
    drawn = Table(
        title="The same sessions under each policy", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    drawn.add_column("", max_width=40, overflow="fold")
    for name in (*runs, "ratio"):
        drawn.add_column(name, justify="right", no_wrap=True)
    blocks = {"all tenants": {policy: run["all"] for policy, run in runs.items()}}
    for tenant in runs[first]["tenants"]:
        blocks[tenant] = {policy: run["tenants"][tenant] for policy, run in runs.items()}
    for name, figures in blocks.items():
        drawn.add_row(name, style="bold")
        for title, figure, shape in ROWS:
            cells = [_cell(figures[policy][figure], shape) for policy in runs]
            ratio = _ratio(figures[last][figure], figures[first][figure])
            drawn.add_row(f"  {title}", *cells, _cell(ratio, "{:.2f}"))
        drawn.add_section()
    return drawn


def with_ratios(runs: Runs, baseline: str) -> dict[str, Any]:
    """Return the runs, each with the ratios of its figures to those of the baseline."""
    against = runs[baseline]["all"]
    return {
        policy: {**run, f"ratio_to_{baseline}": _ratios(run["all"], against)} if policy != baseline else run
        for policy, run in runs.items()
    }


def _ratios(figures: Figures, against: Figures) -> dict[str, float]:
    ratios = {name: _ratio(figures[name], against[name]) for name in RATIOS}
    return {name: ratio for name, ratio in ratios.items() if ratio}


def _ratio(figure: float | None, against: float | None) -> float | None:
    return figure / against if figure is not None and against else None


def _cell(figure: float | None, shape: str) -> str:
    return shape.format(figure) if figure is not None else "-"
