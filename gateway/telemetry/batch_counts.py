"""Counts of batches and their rows on this gateway, which gauges read."""

from dataclasses import dataclass


@dataclass(slots=True)
class BatchCounts:
    """The batches and rows that this gateway runs, and the outcomes of its rows so far."""

    batches: int = 0
    """Batches that are running now."""

    rows: int = 0
    """Rows that are running now."""

    done: int = 0
    """Rows that have a result."""

    failed: int = 0
    """Rows with a result that is an error."""

    retried: int = 0
    """Rows that were refused or failed, and were tried again."""
