"""The workspace is as large as planned, and large enough for the splits of any step."""

from collections.abc import Callable
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.attention.tiles import PROGRAMS, split_count, tile_rows
from workers.engine.attention.workspace import Workspace, workspace_bytes
from workers.engine.checkpoint.model_spec import ModelSpec


def test_a_workspace_takes_the_bytes_that_are_planned(checkpoint: Callable[[str], Path]) -> None:
    spec = ModelSpec.from_directory(checkpoint("llama-gqa"))
    workspace = Workspace(spec, torch.device("cpu"))
    assert workspace_bytes(spec) == workspace.partial.nbytes + workspace.logs.nbytes


@given(st.integers(1, 300), st.integers(1, 33), st.integers(1, 80), st.integers(1, 16))
def test_no_step_has_more_rows_of_splits_than_the_workspace(
    spans: int, tokens: int, group: int, kv_heads: int
) -> None:
    rows = tile_rows(tokens, group)
    tiles = spans * -(-tokens // (rows // group))
    splits = split_count(tiles * kv_heads, 100_000)
    assert splits == 1 or tiles * kv_heads * splits * rows <= PROGRAMS * max(64, tile_rows(33, group))
