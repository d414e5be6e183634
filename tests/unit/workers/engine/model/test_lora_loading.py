"""An adapter that does not fit the model, or changes it in another way, is refused in words."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.tiny_lora import build_lora, tensor_name
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.lora_config import LoraConfig
from workers.engine.errors import CheckpointInvalid
from workers.engine.model.lora import LoraAdapter
from workers.engine.model.lora_loading import load_loras


@pytest.fixture
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama-gqa")


def load(model: Path, *adapters: tuple[str, Path], **bounds: int) -> dict[str, LoraAdapter]:
    config = LoraConfig(adapters=adapters, **bounds)
    spec = ModelSpec.from_directory(model)
    return load_loras(config, spec, dtype=torch.float32, device=torch.device("cpu"))


def changed_tensors(path: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors of an adapter by name; None removes one."""
    file = path / "adapter_model.safetensors"
    kept = {name: tensor for name, tensor in {**load_file(file), **tensors}.items() if tensor is not None}
    save_file(kept, file)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["experts.weight"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": ["q_proj"]}, "target_modules names q_proj"),
        ({"r": 0}, "r must be a positive integer"),
        ({"r": 65}, "rank 65 is more than 64"),
        ({"r": 5}, r"has shape \(4, \d+\), and the model needs \(5, \d+\)"),
        ({"lora_alpha": None}, "lora_alpha"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_config_that_the_engine_cannot_compute_is_refused(
    config: dict[str, Any], named: str, model: Path, tmp_path: Path
) -> None:
    path = build_lora(tmp_path / "a", model)
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}), encoding="utf-8")
    with pytest.raises(CheckpointInvalid, match=named) as caught:
        load(model, ("sql", path))
    assert str(caught.value).startswith("LoRA adapter 'sql': ")


Q_OF_FIRST = tensor_name(0, "q_proj", "A")


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({Q_OF_FIRST: None}, "no lora_A"),
        ({Q_OF_FIRST: torch.zeros(4, 63)}, "shape"),
        ({Q_OF_FIRST: torch.zeros(4, 64, dtype=torch.int32)}, "type I32"),
        ({Q_OF_FIRST: torch.full((4, 64), torch.nan)}, "not numbers"),
        ({Q_OF_FIRST: torch.full((4, 64), torch.inf)}, "infinite"),
        ({tensor_name(2, "q_proj", "A"): torch.zeros(4, 64)}, "beyond the 2 layers"),
        ({"base_model.model.lm_head.weight": torch.zeros(4, 64)}, "no place for the tensor"),
        ({Q_OF_FIRST.replace("lora_A", "lora_magnitude_vector"): torch.zeros(4)}, "no place for the tensor"),
        ({Q_OF_FIRST.replace("self_attn", "mlp"): torch.zeros(4, 64)}, "no place for the tensor"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_tensors_that_do_not_fit_the_model_are_refused(
    tensors: dict[str, torch.Tensor | None], named: str, model: Path, tmp_path: Path
) -> None:
    path = build_lora(tmp_path / "a", model)
    changed_tensors(path, **tensors)
    with pytest.raises(CheckpointInvalid, match=named):
        load(model, ("sql", path))


def test_numbers_that_overflow_the_type_of_the_model_are_refused(model: Path, tmp_path: Path) -> None:
    path = build_lora(tmp_path / "a", model)
    changed_tensors(path, **{Q_OF_FIRST: torch.full((4, 64), 1e6)})
    config = LoraConfig(adapters=(("sql", path),))
    spec = ModelSpec.from_directory(model)
    with pytest.raises(CheckpointInvalid, match="infinite"):
        load_loras(config, spec, dtype=torch.float16, device=torch.device("cpu"))


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(missing: str, model: Path, tmp_path: Path) -> None:
    path = build_lora(tmp_path / "a", model)
    (path / missing).unlink()
    with pytest.raises(CheckpointInvalid, match=f"LoRA adapter 'sql': .*{missing} does not exist"):
        load(model, ("sql", path))


def test_a_damaged_file_is_refused(model: Path, tmp_path: Path) -> None:
    path = build_lora(tmp_path / "a", model)
    (path / "adapter_model.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        load(model, ("sql", path))


def test_adapters_beyond_the_bytes_of_the_bound_are_refused(model: Path, tmp_path: Path) -> None:
    paths = [(str(seed), build_lora(tmp_path / str(seed), model, seed=seed)) for seed in (1, 2)]
    size = load(model, *paths)["1"].num_bytes
    assert len(load(model, *paths, bytes_max=2 * size)) == 2
    with pytest.raises(CheckpointInvalid, match=f"LoRA adapter '2': it takes {size} bytes"):
        load(model, *paths, bytes_max=2 * size - 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types_are_read(dtype: torch.dtype, model: Path, tmp_path: Path) -> None:
    path = build_lora(tmp_path / "a", model, dtype=dtype)
    part = load(model, ("sql", path))["sql"].layers[0].output.parts[0]
    stored = load_file(path / "adapter_model.safetensors")[tensor_name(0, "o_proj", "B")]
    torch.testing.assert_close(part.up, stored.float() * 2)


def test_a_pattern_of_modules_leaves_the_layers_to_the_tensors(model: Path, tmp_path: Path) -> None:
    path = build_lora(tmp_path / "a", model, targets=["q_proj"])
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "target_modules": ".*(q|v)_proj"}))
    layer = load(model, ("sql", path))["sql"].layers[0]
    assert len(layer.qkv.parts) == 1
    assert layer.down.parts == ()
