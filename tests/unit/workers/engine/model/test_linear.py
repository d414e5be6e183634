"""Plain weights in a kernel's own order: the same products, and a plain layer wherever that is not to be had."""

import pytest
import torch
import torch.nn.functional as F

from workers.engine.model import packed_weights
from workers.engine.model.linear import PackedLinear, PlainLinear, plain_linear


def given(outputs: int, inputs: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize(("outputs", "inputs"), [(128, 64), (130, 65), (200, 7), (2, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_wide_layer_gives_the_product_for_any_number_of_rows(
    outputs: int, inputs: int, biased: bool
) -> None:
    weight, bias = given(outputs, inputs), given(outputs, 1).flatten() if biased else None
    layer = plain_linear(weight, bias)
    for rows in (1, 2, 5, 64, 129):
        x = given(rows, inputs)
        with torch.inference_mode():
            torch.testing.assert_close(layer(x), F.linear(x, weight, bias), atol=1e-4, rtol=1e-4)
    assert layer.num_bytes == weight.nbytes


def test_this_machine_packs_wide_float32_weights_and_no_others() -> None:
    # Every CPU build of torch on x86 has the kernel; elsewhere plain layers do.
    wide = plain_linear(given(128, 64))
    assert isinstance(wide, PackedLinear if torch.backends.mkldnn.is_available() else PlainLinear)  # type: ignore[no-untyped-call]
    assert isinstance(plain_linear(given(127, 64)), PlainLinear)
    assert isinstance(plain_linear(given(128, 64, torch.bfloat16)), PlainLinear)


@pytest.mark.parametrize("missing", ["_reorder_linear_weight", "_linear_pointwise"])
def test_without_the_kernel_a_layer_is_plain(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        def __getattr__(self, name: str) -> object:
            if name == missing:
                raise AttributeError(name)
            return getattr(torch.ops.mkldnn, name)

    monkeypatch.setattr(packed_weights, "_mkldnn", Without())
    assert isinstance(plain_linear(given(128, 64)), PlainLinear)


def test_where_the_kernel_refuses_a_layer_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        _linear_pointwise = None

        def _reorder_linear_weight(self, *_: object) -> None:
            raise RuntimeError("needs another processor")

    monkeypatch.setattr(packed_weights, "_mkldnn", Refusing())
    assert isinstance(plain_linear(given(128, 64)), PlainLinear)
