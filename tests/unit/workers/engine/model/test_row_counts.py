"""Products of any number of rows are computed for few different numbers: a kernel is made and kept for each."""

import pytest
import torch
import torch.nn.functional as F

from workers.engine.model.linear import PlainLinear, Projection, plain_linear
from workers.engine.model.packed_weights import PackedFloat
from workers.engine.model.row_counts import linear, padded_row_count, with_padded_rows

BUDGET = 512


def test_every_number_of_rows_is_rounded_up_by_an_eighth_at_most() -> None:
    counts = [padded_row_count(rows) for rows in range(4 * BUDGET)]
    assert all(rows <= count <= rows * 9 / 8 for rows, count in enumerate(counts))
    assert counts == sorted(counts)


def test_few_rows_are_left_as_they_are() -> None:
    assert [padded_row_count(rows) for rows in range(17)] == list(range(17))


def test_a_budget_of_steps_needs_few_different_numbers_of_rows() -> None:
    assert len({padded_row_count(rows) for rows in range(1, BUDGET + 1)}) == 56
    assert len({padded_row_count(rows) for rows in range(1, 16 * BUDGET + 1)}) == 56 + 4 * 8


@pytest.mark.parametrize("rows", [0, 1, 16, 17, 33, 511])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_rows_that_are_added_change_no_other(rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 24, generator=generator).to(dtype)
    weight, bias = (torch.randn(*size, generator=generator).to(dtype) for size in ((64, 24), (64,)))
    with torch.inference_mode():
        for product in (linear(x, weight, bias), plain_linear(weight, bias)(x)):
            torch.testing.assert_close(product, F.linear(x, weight, bias), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_layer_computes_no_number_of_rows_that_was_not_rounded(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: set[int] = set()
    real = F.linear

    def watched(rows: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        computed.add(len(rows))
        return real(rows, *rest)

    monkeypatch.setattr(F, "linear", watched)
    layer: Projection = PlainLinear(weight=torch.zeros(4, 2, dtype=dtype))
    for rows in range(1, 100):
        assert layer(torch.zeros(rows, 2, dtype=dtype)).shape == (rows, 4)
    if dtype == torch.float32:
        assert computed == set(range(1, 100))  # Another library, which makes nothing for a shape.
    else:
        assert computed == {padded_row_count(rows) for rows in range(1, 100)}


def test_a_packed_weight_meets_few_numbers_of_rows() -> None:
    seen: set[int] = set()

    def watched(rows: torch.Tensor) -> torch.Tensor:
        seen.add(len(rows))
        return rows

    for rows in range(1, 100):
        x = torch.ones(rows, 3)
        assert torch.equal(with_padded_rows(watched, x), x)
    assert seen == {padded_row_count(rows) for rows in range(1, 100)}
    found = PackedFloat.pack(torch.zeros(64, 16))
    if found is not None:
        assert found.product(torch.zeros(33, 16), None).shape == (33, 64)
