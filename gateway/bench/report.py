"""The output of `radixgate bench`: a table, a CSV file of all requests, and an HTML page with plots."""

import csv
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from gateway.bench.results import RequestResult
from gateway.bench.simulation_report import PlotError, figure_class

TENANTS_SHOWN_MAX = 20

ROWS = (
    ("requests", "requests", "{:,.0f}"),
    ("errors", "errors", "{:,.0f}"),
    ("prompt tokens", "prompt_tokens", "{:,.0f}"),
    ("cached tokens", "cached_tokens", "{:,.0f}"),
    ("output tokens", "output_tokens", "{:,.0f}"),
    ("hit ratio", "hit_ratio", "{:.1%}"),
    *((f"TTFT {at}", f"ttft_ms_{at}", "{:,.0f} ms") for at in ("mean", "p50", "p90", "p99")),
    *((f"TPOT {at}", f"tpot_ms_{at}", "{:,.1f} ms") for at in ("p50", "p90", "p99")),
    *((f"ITL {at}", f"itl_ms_{at}", "{:,.1f} ms") for at in ("p50", "p95", "p99")),
    *((f"E2E {at}", f"e2e_ms_{at}", "{:,.0f} ms") for at in ("p50", "p90", "p99")),
    ("output tokens/s", "tokens_per_second", "{:,.0f}"),
    ("goodput", "goodput", "{:.1%}"),
    ("goodput requests/s", "goodput_requests_per_second", "{:,.2f}"),
)
COLUMNS = (
    "tenant",
    "sent_s",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "error",
)


def report_table(run: Mapping[str, Any]) -> Table:
    """Return the table: a row for each figure, and columns for all requests and for the busiest tenants."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    columns = {"all": run["all"], **_busiest(run["tenants"])}
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for title, figure, shape in ROWS:
        table.add_row(title, *(_cell(figures[figure], shape) for figures in columns.values()))
    for code in run["all"]["errors_by_code"]:
        table.add_row(
            f"  {code}",
            *(_cell(figures["errors_by_code"].get(code, 0), "{:,}") for figures in columns.values()),
        )
    return table


def results_csv(results: Sequence[RequestResult]) -> str:
    """Return a CSV text with a line for each request, in the order of sending."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    ordered = sorted(results, key=lambda result: result.sent_at)
    for result in ordered:
        writer.writerow(
            [
                # A leading quote keeps spreadsheets from reading the name as a formula.
                f"'{result.tenant}" if result.tenant[:1] in "=+-@" else result.tenant,
                f"{result.sent_at - ordered[0].sent_at:.4f}",
                *(_milliseconds(value) for value in (result.ttft, result.tpot, result.e2e)),
                result.prompt_tokens,
                result.cached_tokens,
                result.output_tokens,
                result.error or "",
            ]
        )
    return out.getvalue()


def report_page(
    title: str, run: Mapping[str, Any], facts: Mapping[str, object], results: Sequence[RequestResult]
) -> str:
    """Return an HTML page with the plots inside. Raises PlotError if matplotlib is missing."""
    heads = ["", "all", *_busiest(run["tenants"])]
    columns = [run["all"], *_busiest(run["tenants"]).values()]
    body = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td>{_cell(figures[figure], shape)}</td>" for figures in columns)
        + "</tr>"
        for name, figure, shape in ROWS
    )
    facts_rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0 }} th {{ text-align: left; font-weight: 500 }}
td, th {{ padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #ddd }} td {{ text-align: right }}
svg {{ max-width: 100%; height: auto }}
</style></head><body><h1>{html.escape(title)}</h1>
<table><tr>{"".join(f"<th>{html.escape(head)}</th>" for head in heads)}</tr>{body}</table>
{_plots(results)}
<h2>How it was measured</h2><table>{facts_rows}</table></body></html>
"""


def _plots(results: Sequence[RequestResult]) -> str:
    drawn = figure_class()(figsize=(13, 7), layout="constrained")
    (over_time, first), (between, whole) = drawn.subplots(2, 2)
    begun = min((result.sent_at for result in results), default=0.0)
    answered = [result for result in results if result.error is None and result.ttft is not None]
    over_time.scatter(
        [result.sent_at - begun for result in answered],
        [1000 * (result.ttft or 0) for result in answered],
        s=4,
    )
    over_time.set(title="TTFT of each request, ms", xlabel="sent after, s")
    _plot_distribution(first, "TTFT, ms", [1000 * (result.ttft or 0) for result in answered])
    _plot_distribution(between, "ITL, ms", [1000 * gap for result in answered for gap in result.gaps])
    _plot_distribution(whole, "E2E, ms", [1000 * (result.e2e or 0) for result in answered])
    out = io.StringIO()
    drawn.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]


def _plot_distribution(panel: Any, title: str, values: Sequence[float]) -> None:
    """Plot a cumulative distribution with at most about 2,000 points."""
    ordered = sorted(values)
    kept = ordered[:: max(1, len(ordered) // 2000)]
    panel.plot(kept, [at / max(1, len(kept) - 1) for at in range(len(kept))])
    panel.set(title=f"{title}: cumulative share", ylim=(0, 1))
    if ordered and ordered[0] > 0 and ordered[-1] > 50 * ordered[0]:
        panel.set_xscale("log")
    panel.grid(alpha=0.3)


def write_text(file: Path, text: str) -> None:
    """Write a text file. Raises PlotError if it cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as err:
        raise PlotError(f"{file} cannot be written: {err.strerror}") from err


def _busiest(tenants: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    if len(tenants) < 2:
        return {}
    ordered = sorted(tenants.items(), key=lambda item: -item[1]["prompt_tokens"])
    return dict(ordered[:TENANTS_SHOWN_MAX])


def _cell(value: float | None, shape: str) -> str:
    return "-" if value is None else shape.format(value)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.3f}"
