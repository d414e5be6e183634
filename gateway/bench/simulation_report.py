"""Tables and plots of simulated runs, for `radixgate simulate`."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich import box
from rich.table import Table

Runs = Mapping[str, Mapping[str, Any]]
"""Figures by policy: `{"all": {...}, "tenants": {...}}`."""

COLUMNS = (
    ("hit ratio", "hit_ratio", "{:.3f}"),
    ("TTFT mean", "ttft_ms_mean", "{:.0f}"),
    ("p50", "ttft_ms_p50", "{:.0f}"),
    ("p90", "ttft_ms_p90", "{:.0f}"),
    ("p99", "ttft_ms_p99", "{:.0f}"),
    ("TPOT", "tpot_ms_mean", "{:.1f}"),
    ("goodput", "goodput", "{:.3f}"),
    ("imbalance", "imbalance", "{:.2f}"),
    ("errors", "errors", "{:.0f}"),
)
PANELS = (
    ("mean TTFT, ms", "ttft_ms_mean"),
    ("p90 TTFT, ms", "ttft_ms_p90"),
    ("mean TPOT, ms", "tpot_ms_mean"),
    ("hit ratio", "hit_ratio"),
    ("goodput", "goodput"),
    ("imbalance", "imbalance"),
)
TENANTS_SHOWN_MAX = 12


class PlotError(Exception):
    """A plot could not be drawn; the text says why."""


def policies_table(
    title: str,
    runs: Runs,
    subject: str = "policy",
    ratios: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> Table:
    """Return a table with a row for each policy; times are milliseconds. `ratios` are further columns by head."""
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    drawn.add_column(subject, overflow="fold")
    for head, _, _ in COLUMNS:
        drawn.add_column(head, justify="right", no_wrap=True)
    for head in ratios:
        drawn.add_column(head, justify="right", no_wrap=True)
    for name, figures in runs.items():
        drawn.add_row(name, *_cells(figures["all"]), *(f"{column[name]:.2f}" for column in ratios.values()))
    return drawn


def tenants_table(policy: str, figures: Mapping[str, Any]) -> Table:
    """Return a table of the tenants that sent most prompt tokens."""
    tenants = sorted(figures["tenants"].items(), key=lambda item: -item[1]["prompt_tokens"])
    shown = {name: {"all": of} for name, of in tenants[:TENANTS_SHOWN_MAX]}
    return policies_table(f"{policy}: the {len(shown)} busiest of {len(tenants)} tenants", shown, "tenant")


def classes_table(runs: Runs) -> Table:
    """Return a table with the share of each service class that was refused or late, and its median and p99 TTFT."""
    drawn = Table(title="refused or late, TTFT p50 / p99 in ms", title_justify="left", box=box.SIMPLE_HEAD)
    drawn.add_column("policy", overflow="fold")
    names = list(dict.fromkeys(name for figures in runs.values() for name in figures.get("classes", ())))
    for name in names:
        drawn.add_column(name, justify="right", no_wrap=True)
    for policy, figures in runs.items():
        drawn.add_row(policy, *(_class_cell(figures.get("classes", {}).get(name)) for name in names))
    return drawn


def _class_cell(figures: Mapping[str, Any] | None) -> str:
    if figures is None or figures["ttft_ms_p50"] is None:
        return "-"
    return f"{100 * figures['missed']:.1f} %  {figures['ttft_ms_p50']:.0f} / {figures['ttft_ms_p99']:.0f}"


def figure_class() -> Any:
    """Return the class of matplotlib's figures. Raises PlotError if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as err:
        raise PlotError("needs matplotlib; pip install 'radixgate[plots]'") from err
    return Figure


def plot_policies(file: Path, groups: Mapping[str, Runs]) -> None:
    """Draw bars into a file: a panel for each figure, a bar for each policy and group. Raises PlotError."""
    names = list(dict.fromkeys(name for runs in groups.values() for name in runs))
    drawn = figure_class()(
        figsize=(14, 3 + 0.28 * len(names) * max(1, len(groups) / 2)), layout="constrained"
    )
    thick = 0.8 / len(groups)
    for panel, (title, figure) in zip(drawn.subplots(2, 3).flat, PANELS, strict=True):
        for at, (group, runs) in enumerate(groups.items()):
            places = [names.index(name) + at * thick for name in runs]
            values = [of["all"][figure] or 0.0 for of in runs.values()]
            panel.barh(places, values, height=thick, label=group)
        panel.set_title(title)
        panel.set_yticks([place + 0.4 - thick / 2 for place in range(len(names))], names)
        panel.invert_yaxis()
    if len(groups) > 1:
        drawn.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=len(groups))
    try:
        drawn.savefig(file)
    except (OSError, ValueError) as err:
        raise PlotError(f"{file} cannot be written: {err}") from err


def _cells(figures: Mapping[str, Any]) -> list[str]:
    return ["-" if figures.get(name) is None else form.format(figures[name]) for _, name, form in COLUMNS]
