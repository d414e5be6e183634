"""The table of all subjects, one row for each, and the reasons of those that were skipped."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from tests.benchmarks.engine_gpu.orders import Order, Speed
from tests.benchmarks.engine_gpu.roofline import Roofline

Outcome = Sequence[Speed] | str
"""The speeds of a subject, or why it was skipped."""


def mean_context(order: Order) -> float:
    """Return the tokens that a decode step of the measurement attends to on average."""
    return order.prompt_tokens + (order.decode_steps + 1) / 2


def speed_table(order: Order, roofline: Roofline, outcomes: Mapping[str, Outcome]) -> Table:
    """Return the table: prefill and decode tokens per second, and the share of the roofline, for each batch."""
    table = Table(
        title=f"prompts of {order.prompt_tokens} tokens, {order.decode_steps} decode steps, {order.dtype}",
        caption=f"copy bandwidth {roofline.bandwidth / 1e9:.0f} GB/s, weights {roofline.weight_bytes / 1e9:.2f} GB",
    )
    table.add_column("subject")
    for batch in order.batches:
        for title in (f"prefill {batch}", f"decode {batch}", "of roofline"):
            table.add_column(title, justify="right")
    for name, outcome in outcomes.items():
        table.add_row(name, *cells(order, roofline, outcome))
    ceilings = [roofline.ceiling(batch, mean_context(order)) for batch in order.batches]
    table.add_row("roofline", *(cell for ceiling in ceilings for cell in ("", f"{ceiling:,.0f}", "100 %")))
    return table


def cells(order: Order, roofline: Roofline, outcome: Outcome) -> list[str]:
    """Return the cells of one subject."""
    if isinstance(outcome, str):
        return ["SKIPPED"]
    return [
        cell
        for speed in outcome
        for cell in (
            f"{speed.prefill:,.0f}",
            f"{speed.decode:,.0f}",
            f"{roofline.share(speed.decode, speed.batch, mean_context(order)):.0%}".replace("%", " %"),
        )
    ]


def document(order: Order, roofline: Roofline, outcomes: Mapping[str, Outcome]) -> dict[str, object]:
    """Return all figures for a JSON file."""
    return {
        name: {"skipped": outcome}
        if isinstance(outcome, str)
        else {
            f"batch_{speed.batch}": {
                "prefill_tokens_per_second": speed.prefill,
                "decode_tokens_per_second": speed.decode,
                "roofline_share": roofline.share(speed.decode, speed.batch, mean_context(order)),
            }
            for speed in outcome
        }
        for name, outcome in outcomes.items()
    }
