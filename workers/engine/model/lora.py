"""LoRA adapters: low-rank updates of a decoder's linear layers, for some rows of a step.

    outputs = x W^T                           all rows in one product, whatever adapter each row has
    outputs[rows] += (x[rows] A^T) B^T        once for each adapter in the step, with its rows; B includes the scale

Rows of the model itself are in no group, and a step without adapters has no groups. Joined layers (query, key and
value; gate and up) have one A below the other, and each B adds to its own columns.

Hu et al. 2021 (LoRA, arXiv 2106.09685).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from workers.engine.model.row_counts import linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPart:
    """The update of one matrix of a joined layer."""

    ranks: slice
    """The columns of the reduced inputs x A^T that belong to this matrix."""
    columns: slice
    """The outputs of the joined layer that this matrix computes."""
    up: Tensor
    """[outputs, rank]: B, multiplied by the adapter's scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraUpdate:
    """The update of one linear layer, which may join several matrices; without parts it changes nothing."""

    down: Tensor | None = None
    """[rank of all parts, in]: the A of each part, one below the other; None without parts."""
    parts: tuple[LoraPart, ...] = ()

    @property
    def num_bytes(self) -> int:
        """The bytes of its matrices."""
        return sum(part.up.nbytes for part in self.parts) + (0 if self.down is None else self.down.nbytes)

    def add(self, outputs: Tensor, inputs: Tensor, rows: Tensor | None) -> None:
        """Add the update to the `rows` of `outputs` [tokens, out], in place; None means all rows.

        `inputs` [tokens, in] are those of the layer.
        """
        if self.down is None:
            return
        reduced = linear(inputs if rows is None else inputs.index_select(0, rows), self.down)
        for part in self.parts:
            added, columns = linear(reduced[:, part.ranks], part.up), outputs[:, part.columns]
            if rows is None:
                columns += added
            else:
                columns.index_add_(0, rows, added)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLayer:
    """The updates of one decoder layer."""

    qkv: LoraUpdate
    output: LoraUpdate
    gate_up: LoraUpdate
    down: LoraUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """A LoRA adapter: the updates of every decoder layer."""

    layers: tuple[LoraLayer, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of all matrices."""
        return sum(
            update.num_bytes
            for layer in self.layers
            for update in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraGroup:
    """The rows of a step that one adapter changes."""

    adapter: LoraAdapter
    rows: Tensor | None
    """[rows]; None: all rows of the step."""


def lora_groups(
    rows_by_name: Sequence[tuple[str, Tensor | None]], adapters: Mapping[str, LoraAdapter]
) -> tuple[LoraGroup, ...]:
    """Return the groups of a step from the rows of each adapter's name."""
    return tuple(LoraGroup(adapter=adapters[name], rows=rows) for name, rows in rows_by_name)
