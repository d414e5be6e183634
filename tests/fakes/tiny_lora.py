"""Tiny LoRA adapters in PEFT's format, and the merged model of each in transformers."""

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def tensor_name(layer: int, target: str, side: str) -> str:
    block = "self_attn" if target in ATTENTION else "mlp"
    return f"base_model.model.model.layers.{layer}.{block}.{target}.lora_{side}.weight"


def build_lora(
    directory: Path,
    model: Path,
    *,
    seed: int = 1,
    rank: int = 4,
    alpha: float = 8.0,
    targets: Collection[str] = ALL,
    layers: Collection[int] | None = None,
    size: float = 0.2,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """An adapter with random weights that change most tokens; `config` adds to its adapter_config.json."""
    shapes = {name: tensor.shape for name, tensor in load_file(model / "model.safetensors").items()}
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    every = range(json.loads((model / "config.json").read_text())["num_hidden_layers"])
    for layer in every if layers is None else layers:
        for target in targets:
            block = "self_attn" if target in ATTENTION else "mlp"
            outputs, inputs = shapes[f"model.layers.{layer}.{block}.{target}.weight"]
            for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                tensors[tensor_name(layer, target, side)] = (torch.randn(shape, generator=chance) * size).to(
                    dtype
                )
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "target_modules": list(targets),
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "init_lora_weights": True,
        **config,
    }
    (directory / "adapter_config.json").write_text(json.dumps(written), encoding="utf-8")
    return directory


def merged_model(model: Path, adapter: Path | None) -> Any:
    """The checkpoint in transformers, with W + scale B A in place of each changed W."""
    merged = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is None:
        return merged
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config["use_rslora"] else config["r"])
    weights = {
        name: tensor.float() for name, tensor in load_file(adapter / "adapter_model.safetensors").items()
    }
    with torch.no_grad():
        for name, a in weights.items():
            if name.endswith(".lora_A.weight"):
                module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                b = weights[name.replace("lora_A", "lora_B")]
                merged.get_submodule(module).weight += scale * b @ a
    return merged


def generated(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """The tokens that greedy decoding appends to a prompt."""
    answer = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=3,
    )
    found: list[int] = answer[0][len(prompt) :].tolist()
    return found
