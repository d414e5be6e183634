"""The tensors of a checkpoint, in one safetensors file or in the several that an index lists.

Damaged files are refused, and so are those that engines read differently: an index beside a single file, a shard
with tensors that the index does not expect there, numbers that are infinite or not numbers at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from workers.engine.checkpoint.json_files import read_json
from workers.engine.errors import CheckpointInvalid

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The types in which unquantised weights are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFiles:
    """The tensors of a checkpoint by name."""

    shards: Mapping[str, Path]
    """The file that holds each tensor."""
    dtype: torch.dtype
    """The type that the model computes in."""
    device: torch.device
    taken: set[str] = field(default_factory=set)
    """The names of the tensors that were read."""

    @classmethod
    def of(cls, directory: Path, *, dtype: torch.dtype, device: torch.device) -> "TensorFiles":
        """Return the tensors of the checkpoint in `directory`. Raises CheckpointInvalid; reads no tensor."""
        return cls(shards=_shards(directory), dtype=dtype, device=device)

    def take(self, name: str, *shape: int) -> Tensor:
        """Read a weight, check its shape, and convert it to the type that the model computes in."""
        stored = self._read(name, shape)
        if stored.dtype not in FLOATS:
            raise CheckpointInvalid(
                f"{self.shards[name]}: {name} has the type {stored.dtype}, and is no weight"
            )
        # After the conversion: a number may be beyond the narrower type.
        return self._finite(name, stored.to(self.dtype)).to(self.device)

    def raw(self, name: str, *shape: int) -> Tensor:
        """Read a tensor in the type that it is stored in, and check its shape."""
        stored = self._read(name, shape)
        return (self._finite(name, stored) if stored.dtype in FLOATS else stored).to(self.device)

    def unused(self) -> list[str]:
        """Return the names of the tensors that were not read."""
        return [name for name in self.shards if name not in self.taken]

    def __contains__(self, name: object) -> bool:
        return name in self.shards

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.taken.add(name)
        path = self.shards.get(name)
        if path is None:
            raise CheckpointInvalid(f"the checkpoint has no tensor {name}")
        with _open(path) as file:
            try:
                tensor: Tensor = file.get_tensor(name)
            except SafetensorError as err:
                raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
        if tuple(tensor.shape) != shape:
            raise CheckpointInvalid(f"{name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        return tensor

    def _finite(self, name: str, tensor: Tensor) -> Tensor:
        # Both ends of the range are finite if all numbers are; one pass without a copy.
        if not all(end.isfinite() for end in tensor.aminmax()):
            raise CheckpointInvalid(
                f"{self.shards[name]}: {name} has numbers that are infinite or not numbers at all in {tensor.dtype}"
            )
        return tensor


def _shards(directory: Path) -> dict[str, Path]:
    """Return the file that holds each tensor."""
    single, index = directory / SINGLE, directory / INDEX
    if not index.exists():
        if not single.exists():
            raise CheckpointInvalid(f"{directory} has neither {SINGLE} nor {INDEX}")
        with _open(single) as file:
            return dict.fromkeys(file.keys(), single)
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointInvalid(f"{index} has no weight_map")
    # A file name that leads out of the directory would read files that do not belong to the checkpoint.
    if stray := [name for name in weight_map.values() if Path(str(name)).name != name]:
        raise CheckpointInvalid(f"{index} names a shard outside of the checkpoint: {stray[0]!r}")
    if single.exists() and SINGLE not in weight_map.values():
        raise CheckpointInvalid(
            f"{directory} has both {SINGLE} and an index of other files: remove one of them"
        )
    shards = {tensor: directory / name for tensor, name in weight_map.items()}
    for path in set(shards.values()):
        _refuse_unexpected(path, shards)
    return shards


def _refuse_unexpected(path: Path, shards: Mapping[str, Path]) -> None:
    """Raise CheckpointInvalid if a shard has a tensor that the index expects elsewhere or nowhere."""
    with _open(path) as file:
        unexpected = [name for name in file.keys() if shards.get(name) != path]  # noqa: SIM118 - a file is no mapping
    if unexpected:
        raise CheckpointInvalid(
            f"{path} has tensors that {INDEX} does not expect there, {min(unexpected)} among them"
        )


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as err:
        raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
