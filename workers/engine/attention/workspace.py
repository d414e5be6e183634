"""The workspace of the decode kernel: the results of each split of a context, which `merge_kernel` joins."""

import torch
from torch import Tensor

from workers.engine.attention.tiles import PROGRAMS, ROWS_MAX, power_of_two
from workers.engine.checkpoint.model_spec import ModelSpec

_COLUMNS_MIN = 16
_FLOAT32 = 4


class Workspace:
    """Float32 tensors that all steps of a backend reuse, large enough for any step."""

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        rows, columns = _shape(spec)
        self.partial: Tensor = torch.empty(rows * columns, dtype=torch.float32, device=device)
        """[programs * rows * columns]: the weighted mean of the values of the program's split, for each row."""
        self.logs: Tensor = torch.empty(rows, dtype=torch.float32, device=device)
        """[programs * rows]: log2 of the sum of the weights of the program's split, for each row."""


def workspace_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a workspace: contexts are split only as long as all splits are at most PROGRAMS."""
    rows, columns = _shape(spec)
    return rows * (columns + 1) * _FLOAT32


def _shape(spec: ModelSpec) -> tuple[int, int]:
    rows = max(ROWS_MAX, power_of_two(spec.heads // spec.kv_heads))
    return PROGRAMS * rows, max(_COLUMNS_MIN, power_of_two(spec.head_dim))
