"""Loading LoRA adapters from directories in PEFT's format: adapter_config.json and adapter_model.safetensors.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight   [rank, in]
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight   [out, rank]

Names and shapes are checked before a tensor is read, so that a file that does not fit takes no memory. A tensor
that the engine has no place for is refused, and so is a number that is infinite or not a number at all.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from workers.engine.checkpoint.lora_spec import LoraSpec
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.lora_config import LoraConfig
from workers.engine.errors import CheckpointInvalid
from workers.engine.model.lora import LoraAdapter, LoraLayer, LoraPart, LoraUpdate

_NAME = re.compile(
    r"base_model\.model\.model\.layers\.(\d+)\.(self_attn|mlp)\.(\w+)\.lora_([AB])\.weight", re.ASCII
)
_FLOATS = ("F64", "F32", "F16", "BF16")

ModuleKey = tuple[int, str]
"""A layer's number, and the name of one of its matrices."""


def load_loras(
    config: LoraConfig, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device
) -> dict[str, LoraAdapter]:
    """Read all adapters of the settings, and return them by name.

    Args:
        config: the settings.
        spec: the model that the adapters are for.
        dtype: the type that the model computes in.
        device: where the weights go.

    Raises:
        CheckpointInvalid: an adapter is missing or damaged, does not fit the model, or is not supported; or all
            together are too large. The message names the adapter.
    """
    found: dict[str, LoraAdapter] = {}
    bytes_left = config.bytes_max
    for name, directory in config.adapters:
        try:
            lora = LoraSpec.from_directory(directory, rank_max=config.rank_max)
            file = _AdapterFile.open(directory / "adapter_model.safetensors", lora, spec)
            if (size := file.num_bytes(dtype)) > bytes_left:
                raise CheckpointInvalid(
                    f"it takes {size} bytes, and of the {config.bytes_max} for all adapters {bytes_left} are left"
                )
        except CheckpointInvalid as err:
            raise CheckpointInvalid(f"LoRA adapter {name!r}: {err}") from err
        bytes_left -= size
        try:
            found[name] = file.adapter(dtype=dtype, device=device)
        except CheckpointInvalid as err:
            raise CheckpointInvalid(f"LoRA adapter {name!r}: {err}") from err
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdapterFile:
    """An adapter's tensors, with names and shapes that fit the model."""

    path: Path
    lora: LoraSpec
    spec: ModelSpec
    names: Mapping[tuple[ModuleKey, str], str]
    """The name in the file of the A and the B of each changed matrix."""

    @classmethod
    def open(cls, path: Path, lora: LoraSpec, spec: ModelSpec) -> "_AdapterFile":
        """Read the names and shapes in the file. Raises CheckpointInvalid where they do not fit the model."""
        if not path.exists():
            raise CheckpointInvalid(f"{path} does not exist (other formats, such as .bin, are not read)")
        try:
            with safe_open(path, framework="pt") as file:
                kinds = {
                    name: (tuple(part.get_shape()), part.get_dtype())
                    for name in file.keys()  # noqa: SIM118 - a file is no mapping
                    for part in [file.get_slice(name)]
                }
        except (SafetensorError, OSError) as err:
            raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
        names: dict[tuple[ModuleKey, str], str] = {}
        for name, (shape, kind) in kinds.items():
            module, side = _module(path, name, spec)
            outputs, inputs = _sizes(spec)[module[1]]
            wanted = (lora.rank, inputs) if side == "A" else (outputs, lora.rank)
            if shape != wanted:
                raise CheckpointInvalid(f"{path}: {name} has shape {shape}, and the model needs {wanted}")
            if kind not in _FLOATS:
                raise CheckpointInvalid(f"{path}: {name} has the type {kind} ({', '.join(_FLOATS)})")
            names[module, side] = name
        found = cls(path=path, lora=lora, spec=spec, names=names)
        found._check_complete()
        return found

    def _check_complete(self) -> None:
        for (module, side), name in self.names.items():
            other = "B" if side == "A" else "A"
            if (module, other) not in self.names:
                raise CheckpointInvalid(f"{self.path} has {name} and no lora_{other} for it")
        changed = {name for (_, name), _ in self.names}
        if not changed:
            raise CheckpointInvalid(f"{self.path} has no tensors")
        targets = self.lora.targets
        if targets is not None and targets != changed:
            raise CheckpointInvalid(
                f"{self.path} changes {', '.join(sorted(changed))}, and target_modules names "
                f"{', '.join(sorted(targets))}"
            )

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes that the adapter takes in `dtype`."""
        sizes = _sizes(self.spec)
        modules = {module for module, _ in self.names}
        return sum(self.lora.rank * sum(sizes[name]) for _, name in modules) * dtype.itemsize

    def adapter(self, *, dtype: torch.dtype, device: torch.device) -> LoraAdapter:
        """Read all tensors. Raises CheckpointInvalid for one that is not finite."""

        def update(number: int, *names: str) -> LoraUpdate:
            return self._update(number, names, dtype=dtype, device=device)

        return LoraAdapter(
            layers=tuple(
                LoraLayer(
                    qkv=update(number, "q_proj", "k_proj", "v_proj"),
                    output=update(number, "o_proj"),
                    gate_up=update(number, "gate_proj", "up_proj"),
                    down=update(number, "down_proj"),
                )
                for number in range(self.spec.layers)
            )
        )

    def _update(
        self, number: int, names: Iterable[str], *, dtype: torch.dtype, device: torch.device
    ) -> LoraUpdate:
        """Return the update of the joined matrices `names` of one layer."""
        downs: list[Tensor] = []
        parts: list[LoraPart] = []
        column, rank = 0, self.lora.rank
        for name in names:
            outputs = _sizes(self.spec)[name][0]
            if ((number, name), "A") in self.names:
                place = len(downs) * rank
                downs.append(self._read((number, name), "A"))
                up = self._read((number, name), "B") * self.lora.scale
                parts.append(
                    LoraPart(
                        ranks=slice(place, place + rank),
                        columns=slice(column, column + outputs),
                        up=self._finite(up.to(dtype), name).to(device),
                    )
                )
            column += outputs
        if not parts:
            return LoraUpdate()
        down = self._finite(torch.cat(downs).to(dtype), "lora_A").to(device)
        return LoraUpdate(down=down, parts=tuple(parts))

    def _read(self, module: ModuleKey, side: str) -> Tensor:
        name = self.names[module, side]
        try:
            with safe_open(self.path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as err:
            raise CheckpointInvalid(f"{self.path} cannot be read: {err}") from err
        return self._finite(tensor.float(), name)

    def _finite(self, tensor: Tensor, name: str) -> Tensor:
        """Return the tensor. Raises CheckpointInvalid unless all of its numbers are finite."""
        if not all(end.isfinite() for end in tensor.aminmax()):
            raise CheckpointInvalid(
                f"{self.path}: {name} has numbers that are infinite or not numbers at all"
            )
        return tensor


def _module(path: Path, name: str, spec: ModelSpec) -> tuple[ModuleKey, str]:
    """Return the matrix that a tensor belongs to, and "A" or "B". Raises CheckpointInvalid for any other tensor."""
    found = _NAME.fullmatch(name)
    if found is None or found[3] not in _BLOCKS.get(found[2], ()):
        raise CheckpointInvalid(f"{path}: the engine has no place for the tensor {name}")
    number = int(found[1])
    if number >= spec.layers:
        raise CheckpointInvalid(f"{path}: {name} is beyond the {spec.layers} layers of the model")
    return (number, found[3]), found[4]


_BLOCKS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
"""The matrices of each part of a decoder layer."""


def _sizes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """Return the outputs and inputs of each matrix of a decoder layer."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    return {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
