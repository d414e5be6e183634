"""What this gateway does for batches, in numbers that metrics read."""

from dataclasses import dataclass


@dataclass(slots=True)
class BatchCounts:
    """`batches`, `rows`: under way. `done`: rows with a result, `failed` of these. `again`: tried once more."""

    batches: int = 0
    rows: int = 0
    done: int = 0
    failed: int = 0
    again: int = 0
