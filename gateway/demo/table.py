"""The demo's table: runs side by side, by tenant and in all."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

Runs = Mapping[str, Mapping[str, Any]]

COLUMNS = (
    ("requests", "requests", "{:,.0f}"),
    ("prompt tokens", "prompt_tokens", "{:,.0f}"),
    ("cached", "cached_tokens", "{:,.0f}"),
    ("hit ratio", "hit_ratio", "{:.1%}"),
    ("possible", "possible_hit_ratio", "{:.1%}"),
    ("TTFT p50", "ttft_ms_p50", "{:,.0f} ms"),
    ("p95", "ttft_ms_p95", "{:,.0f} ms"),
    ("TPOT", "tpot_ms_p50", "{:,.1f} ms"),
    ("ITL", "itl_ms_p50", "{:,.1f} ms"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("goodput/s", "goodput_requests_per_second", "{:,.2f}"),
)

RATIOS = ("hit_ratio", "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tokens_per_second")


def table(runs: Runs) -> Table:
    """One block a run: its tenants, then all of them together."""
    drawn = Table(title="The same sessions under each policy", title_justify="left")
    drawn.add_column("policy")
    drawn.add_column("tenant")
    for title, _, _ in COLUMNS:
        drawn.add_column(title, justify="right")
    for policy, run in runs.items():
        for tenant, figures in run["tenants"].items():
            drawn.add_row(policy, tenant, *_cells(figures))
        drawn.add_row(policy, "all", *_cells(run["all"]), style="bold", end_section=True)
    return drawn


def with_ratios(runs: Runs, baseline: str) -> dict[str, Any]:
    """The runs, each with its figures as a ratio to those of the baseline."""
    against = runs[baseline]["all"]
    return {
        policy: {**run, f"ratio_to_{baseline}": _ratios(run["all"], against)} if policy != baseline else run
        for policy, run in runs.items()
    }


def _ratios(figures: Mapping[str, Any], against: Mapping[str, Any]) -> dict[str, float]:
    return {name: figures[name] / against[name] for name in RATIOS if figures[name] and against[name]}


def _cells(figures: Mapping[str, Any]) -> list[str]:
    return [shape.format(figures[name]) if figures[name] is not None else "-" for _, name, shape in COLUMNS]
