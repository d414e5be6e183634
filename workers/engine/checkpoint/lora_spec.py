"""The description of a LoRA adapter in its adapter_config.json, in the format of the library PEFT.

    W' = W + scale B A        A [rank, in], B [out, rank]
    scale = alpha / rank, or alpha / sqrt(rank) with `use_rslora` (Kalajdzievski 2023, arXiv 2312.03732)

An adapter that changes the model in another way is refused: its answers would be those of another model.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.engine.checkpoint.json_files import read_json
from workers.engine.errors import CheckpointInvalid

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers that an adapter may change."""

_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "bias": ("none",),
    "lora_bias": (False,),
    "use_dora": (False,),
    "use_qalora": (False,),
    "use_bdlora": (False,),
    "modules_to_save": ([],),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "layer_replication": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([], {}),
    "alora_invocation_tokens": ([],),
    "arrow_config": ({},),
    "kasa_config": ({},),
    "monteclora_config": ({},),
    "fan_in_fan_out": (False,),
}
"""The values of each key with which the engine computes the adapter as PEFT does; so does null, for every key."""

_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Prefixes of `init_lora_weights` for adapters to changed weights of the model, which its checkpoint lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """The sizes of a LoRA adapter, and the layers that it changes."""

    rank: int
    scale: float
    """The factor of B A."""
    targets: frozenset[str] | None
    """Names from TARGETS, each changed in at least one layer; None where only the tensors have them."""

    @classmethod
    def from_directory(cls, directory: Path, *, rank_max: int) -> "LoraSpec":
        """Read the adapter_config.json in `directory`.

        Raises:
            CheckpointInvalid: the file is missing or unreadable, or the engine cannot compute the adapter.
        """
        path = directory / "adapter_config.json"
        config = read_json(path)
        kind = config.get("peft_type")
        if kind != "LORA":
            raise CheckpointInvalid(f"{path}: peft_type {kind!r} is not supported (LORA)")
        _refuse_unsupported(path, config)
        rank, alpha = config.get("r"), config.get("lora_alpha")
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise CheckpointInvalid(f"{path}: r must be a positive integer, not {rank!r}")
        if rank > rank_max:
            raise CheckpointInvalid(
                f"{path}: rank {rank} is more than {rank_max}, the largest of this engine"
            )
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
            raise CheckpointInvalid(f"{path}: lora_alpha must be a number, not {alpha!r}")
        divisor = math.sqrt(rank) if config.get("use_rslora") else rank
        return cls(rank=rank, scale=alpha / divisor, targets=_targets(path, config.get("target_modules")))


def _refuse_unsupported(path: Path, config: Mapping[str, Any]) -> None:
    for name, harmless in _HARMLESS.items():
        value = config.get(name)
        if value is not None and value not in harmless:
            raise CheckpointInvalid(f"{path}: {name} {value!r} is not supported by this engine")
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_CHANGES_BASE):
        raise CheckpointInvalid(
            f"{path}: init_lora_weights {init!r} is not supported: it changes the weights of the model itself"
            " (PEFT can convert the adapter when it is saved)"
        )


def _targets(path: Path, modules: object) -> frozenset[str] | None:
    """Return the named layers; None for a pattern, which PEFT applied when it chose the layers."""
    if isinstance(modules, str) and modules:
        return None
    if not isinstance(modules, list) or not modules:
        raise CheckpointInvalid(f"{path}: target_modules must name linear layers, not {modules!r}")
    names = frozenset(str(module).rpartition(".")[2] for module in modules)
    if unknown := sorted(names - {*TARGETS}):
        raise CheckpointInvalid(
            f"{path}: target_modules {', '.join(unknown)} cannot be changed by an adapter ({', '.join(TARGETS)})"
        )
    return names
