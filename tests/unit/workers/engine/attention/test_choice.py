"""The attention backend is chosen by the setting and by what the machine can do, and a refusal says why."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from workers.engine.attention.choice import choose_backend
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.errors import ConfigInvalid

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def modern(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with triton and a device that is new enough."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.mark.usefixtures("modern")
def test_auto_takes_triton_on_cuda_and_sdpa_elsewhere() -> None:
    assert choose_backend("auto", device=CUDA, kv_layout="paged") == "triton"
    assert choose_backend("auto", device=CPU, kv_layout="paged") == "sdpa"
    assert choose_backend("sdpa", device=CUDA, kv_layout="paged") == "sdpa"


@pytest.mark.usefixtures("modern")
def test_without_a_kv_cache_auto_takes_sdpa_and_triton_is_refused() -> None:
    assert choose_backend("auto", device=CUDA, kv_layout="none") == "sdpa"
    with pytest.raises(ConfigInvalid, match="kv_layout none keeps none"):
        choose_backend("triton", device=CUDA, kv_layout="none")


@pytest.mark.usefixtures("modern")
def test_a_device_that_is_too_old_is_refused_with_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_backend("auto", device=CUDA, kv_layout="paged") == "sdpa"
    with pytest.raises(ConfigInvalid, match=r"needs compute capability 8\.0, and this device has 7\.5"):
        choose_backend("triton", device=CUDA, kv_layout="paged")


def test_without_the_package_auto_takes_sdpa_and_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose_backend("auto", device=CUDA, kv_layout="paged") == "sdpa"
    with pytest.raises(ConfigInvalid, match="package triton, which is not installed"):
        choose_backend("triton", device=CUDA, kv_layout="paged")


def test_an_engine_on_the_cpu_refuses_triton_when_it_starts(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    config = EngineConfig(model=checkpoint("llama-gqa"), device="cpu", attention_backend="triton")
    with pytest.raises(ConfigInvalid, match="attention_backend triton needs a CUDA device, not cpu"):
        Engine.load(config)


def test_an_unknown_backend_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="attention_backend must be one of auto, sdpa, triton"):
        EngineConfig(model=tmp_path, attention_backend="flash")  # type: ignore[arg-type]
