"""Quantises checkpoints as AWQ and GPTQ files, number by number, and writes a plain twin with the same weights.

It packs with loops over single numbers and shares nothing with what reads them.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How to quantise; `shuffle`: GPTQ's desc_act, a seed for the order of inputs, or one for each module."""

    method: str
    bits: int = 4
    group: int = 32
    symmetric: bool = False
    second_format: bool = False
    shuffle: bool = False
    shuffle_apart: bool = False
    plain: tuple[str, ...] = ()
    """Layers that are left as they are."""
    head: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says of it."""
        common = {"quant_method": self.method, "bits": self.bits, "group_size": self.group}
        if self.method == "awq":
            return common | {
                "version": "gemm",
                "zero_point": True,
                "modules_to_not_convert": list(self.plain) or None,
            }
        form = "gptq_v2" if self.second_format else "gptq"
        return common | {"checkpoint_format": form, "desc_act": self.shuffle, "sym": self.symmetric}


def quantise(source: Path, target: Path, scheme: Scheme) -> tuple[Path, Path]:
    """Writes `target`/packed and `target`/plain, two checkpoints with the same weights."""
    weights = load_file(source / "model.safetensors")
    packed, plain = dict(weights), dict(weights)
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        last = module.split(".")[-1]
        if not name.endswith(".weight") or (last not in LAYERS and not (scheme.head and last == "lm_head")):
            continue
        if last in scheme.plain:
            continue
        del packed[name]
        seed = sum(map(ord, module)) if scheme.shuffle_apart else weight.shape[1]
        tensors, plain[name] = _quantise(weight, scheme, np.random.default_rng(seed))
        packed |= {f"{module}.{part}": tensor for part, tensor in tensors.items()}
    return _write(source, target / "packed", packed, scheme.config), _write(
        source, target / "plain", plain, None
    )


def _write(source: Path, target: Path, weights: dict[str, Any], quantised: dict[str, Any] | None) -> Path:
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix == ".json":
            shutil.copy(file, target)
    if quantised is not None:
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    save_file(
        {name: np.ascontiguousarray(weight) for name, weight in weights.items()}, target / "model.safetensors"
    )
    return target


def _quantise(
    weight: NDArray[np.float32], scheme: Scheme, chance: np.random.Generator
) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
    """Packed tensors of `weight` [out, in], and the weight that they stand for."""
    outputs, inputs = weight.shape
    size, top = inputs if scheme.group == -1 else scheme.group, 2**scheme.bits - 1
    group_of = np.arange(inputs) // size
    if scheme.shuffle:
        group_of = chance.permutation(group_of)
    count = inputs // size
    scales, zeros = np.zeros((count, outputs), np.float16), np.zeros((count, outputs), np.int64)
    steps, plain = np.zeros((inputs, outputs), np.int64), np.zeros_like(weight)
    for group in range(count):
        columns = weight[:, group_of == group].T
        low, high = np.minimum(columns.min(0), 0), np.maximum(columns.max(0), 0)
        if scheme.symmetric:
            scale = (2 * np.abs(columns).max(0) / top).astype(np.float16)
            zero = np.full(outputs, (top + 1) // 2)
        else:
            scale = ((high - low) / top).astype(np.float16)
            # The first format of GPTQ cannot say 0.
            least = 0 if scheme.method == "awq" or scheme.second_format else 1
            zero = np.clip(np.round(-low / scale), least, top).astype(np.int64)
        step = np.clip(np.round(columns / scale.astype(np.float32) + zero), 0, top)
        scales[group], zeros[group], steps[group_of == group] = scale, zero, step
        plain[:, group_of == group] = ((step - zero) * scale.astype(np.float32)).T
    if scheme.method == "awq":
        return {
            "qweight": _pack_rows(steps, 4, AWQ_ORDER),
            "qzeros": _pack_rows(zeros, 4, AWQ_ORDER),
            "scales": scales,
        }, plain
    straight = tuple(range(32 // scheme.bits))
    return {
        "qweight": _pack_rows(steps.T, scheme.bits, straight).T,
        "qzeros": _pack_rows(zeros if scheme.second_format else zeros - 1, scheme.bits, straight),
        "scales": scales,
        "g_idx": group_of.astype(np.int32),
    }, plain


def _pack_rows(numbers: NDArray[np.int64], bits: int, order: tuple[int, ...]) -> NDArray[np.int32]:
    """Along the last axis, so many in an int32: number order[n] of them at bit n * bits."""
    rows, columns = numbers.shape
    words = np.zeros((rows, columns // len(order)), np.int64)
    for row in range(rows):
        for column in range(words.shape[1]):
            for place, which in enumerate(order):
                words[row, column] |= int(numbers[row, column * len(order) + which]) << (place * bits)
    return words.astype(np.uint32).view(np.int32)
