"""Kernels that cannot be compiled are refused at start, in words."""

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.unit.workers.engine.attention.kernel_device import DEVICE
from workers.engine.attention.attention_backend import AttentionSpan, AttentionStep
from workers.engine.attention.triton_backend import TritonBackend
from workers.engine.engine import Engine
from workers.engine.errors import ConfigInvalid


def test_a_kernel_that_does_not_fit_the_device_is_refused_with_what_to_do(
    load: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.errors import TritonError

    def begin(backend: TritonBackend, spans: Sequence[AttentionSpan]) -> AttentionStep:
        raise TritonError("out of resource: shared memory, Required: 110592\nHardware limit: 101376")

    monkeypatch.setattr(TritonBackend, "begin", begin)
    expected = r"cannot compute this model on this device \(out of resource: .* 110592\); start with .* sdpa"
    with pytest.raises(ConfigInvalid, match=expected):
        load("llama-gqa", device=DEVICE.type, attention_backend="triton")


def test_the_first_steps_touch_no_block_but_the_spare_one(
    load: Callable[..., Engine],
) -> None:
    engine = load("llama-gqa", device=DEVICE.type, attention_backend="triton", kv_tokens=64)
    assert engine.store is not None
    for part in (*engine.store.keys, *engine.store.values):
        assert not torch.any(part[:, 1:])
    assert torch.any(engine.store.keys[0][:, 0])
