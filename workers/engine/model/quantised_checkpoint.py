"""The packed tensors of AWQ and GPTQ checkpoints, read into grouped weights.

    AWQ (gemm)   qweight [in, out / 8]          eight outputs in an int32, output order[n] in nibble n
                 qzeros  [in / group, out / 8]  the same                           order = 0 2 4 6 1 3 5 7
    GPTQ         qweight [in / n, out]          n = 32 / bits inputs in an int32, the first in the lowest bits
                 qzeros  [in / group, out / n]  outputs; the first format (v1) stores them less one
                 g_idx   [in]                   the group of each input; with desc_act not in order
    both         scales  [in / group, out]      w[i, o] = scale * (q - zero)

Lin et al. 2023 (AWQ, arXiv 2306.00978) and Frantar et al. 2022 (GPTQ, arXiv 2210.17323) show how to choose the
steps; the layouts are those of the libraries AutoAWQ, AutoGPTQ and GPTQModel.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from workers.engine.checkpoint.quantization_spec import QuantizationSpec
from workers.engine.errors import CheckpointInvalid
from workers.engine.model.quantization import GroupedWeight

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble that each of eight outputs is in: the inverse of the order above."""

ReadTensor = Callable[..., Tensor]
"""A function that reads the tensor of a name, and checks it against the sizes that follow."""


def read_groups(
    spec: QuantizationSpec, read: ReadTensor, module: str, *, inputs: int, outputs: int
) -> GroupedWeight:
    """Return the weight of the layer `module`, read from its packed tensors.

    Raises:
        CheckpointInvalid: the tensors do not fit together.
    """
    group, packed = spec.group or inputs, 32 // spec.bits
    if inputs % group or inputs % packed or outputs % packed:
        raise CheckpointInvalid(
            f"{module}: {inputs} inputs and {outputs} outputs are not whole groups of {group} and words of {packed}"
        )
    count = inputs // group
    words = read(f"{module}.qzeros", count, outputs // packed)
    if spec.zero_points_minus_one:
        # Added to the whole word, as GPTQModel subtracts it: a zero point of 0 borrowed from its neighbour.
        words = words + sum(1 << shift for shift in range(0, 32, spec.bits))
    zeros = _unpack(words, spec.bits)
    scales = read(f"{module}.scales", count, outputs).float()
    if spec.method == "awq":
        steps = _unpack(read(f"{module}.qweight", inputs, outputs // packed), spec.bits)[
            ..., AWQ_PLACES
        ].flatten(1)
        zeros, order = zeros[..., AWQ_PLACES], None
    else:
        words = read(f"{module}.qweight", inputs // packed, outputs)
        steps = _unpack(words, spec.bits).transpose(1, 2).flatten(0, 1)
        order = _order(read(f"{module}.g_idx", inputs), module, group)
    if order is not None:
        steps = steps.index_select(0, order)
    middle = (2 ** (spec.bits - 1) - zeros.flatten(1)) * scales
    return GroupedWeight(
        steps=steps.t().contiguous().to(torch.uint8),
        scale=scales.t().contiguous(),
        middle=middle.t().contiguous(),
        bits=spec.bits,
        order=order,
    )


def _unpack(words: Tensor, bits: int) -> Tensor:
    """Return the numbers in each int32, lowest bits first, along a new last axis."""
    if words.dtype != torch.int32:
        raise CheckpointInvalid(f"packed tensors must be int32, not {words.dtype}")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    # The highest number's sign fills from the left; the mask takes it away.
    numbers: Tensor = (words[..., None] >> shifts) & (2**bits - 1)
    return numbers


def _order(groups: Tensor, module: str, group: int) -> Tensor | None:
    """Return the inputs sorted by their group, or None where they are sorted already."""
    regular = torch.arange(len(groups), device=groups.device) // group
    if torch.equal(groups.long(), regular):
        return None
    order = groups.long().argsort(stable=True)
    if not torch.equal(groups.long()[order], regular):
        raise CheckpointInvalid(f"{module}: the groups of g_idx are not all of {group} inputs")
    return order
