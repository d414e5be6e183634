"""Drafts by Medusa heads (Cai et al. 2024): small heads on the last hidden state, one for each position ahead.

    hidden state that gave token t+1 --+-- model's head --> t+1
                                       +-- head 0 --------> t+2        head i:  x + SiLU(W x + b), once or several
                                       +-- head 1 --------> t+3                 times, then to the vocabulary

A head does not depend on the drafts of other heads, so each of its candidates may follow each of the head before:
the drafts form a tree, and `medusa_tree` chooses its shape. The files are those of the paper's authors:
`medusa_lm_head.safetensors` with, for head h and its blocks 0 to n - 1,

    h.0.linear.weight [hidden, hidden]   h.0.linear.bias [hidden]   ...   h.n.weight [vocab, hidden]

with or without "medusa_heads." before them, and `config.json` with medusa_num_heads and medusa_num_layers. A head
without a matrix of its own uses the model's.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from workers.engine.checkpoint.json_files import integer, read_json
from workers.engine.errors import CheckpointInvalid
from workers.engine.model.decoder import Decoder
from workers.engine.model.linear import Projection, plain_linear
from workers.engine.scheduler.drafter import ComputedStep
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import Sequence
from workers.engine.speculative.medusa_tree import CandidateTree

HEADS_FILE = "medusa_lm_head.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaHead:
    """One head: residual blocks, and a matrix to the vocabulary."""

    blocks: tuple[Projection, ...]
    out: Projection

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits [rows, vocab] of `hidden` [rows, hidden]."""
        for block in self.blocks:
            hidden = hidden + F.silu(block(hidden))
        return self.out(hidden)


def load_heads(directory: Path, decoder: Decoder, *, dtype: torch.dtype) -> tuple[MedusaHead, ...]:
    """Return all heads in `directory`, the one for the nearest position first.

    Raises:
        CheckpointInvalid: A file or a tensor is missing or has the wrong shape.
    """
    config = read_json(directory / "config.json")
    path = directory / HEADS_FILE
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as err:
        raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
    weights = {name.removeprefix("medusa_heads."): tensor for name, tensor in found.items()}
    hidden, vocab = decoder.spec.hidden_size, decoder.spec.vocab_size

    def take(name: str, *shape: int) -> Tensor:
        if name not in weights:
            raise CheckpointInvalid(f"{path} has no tensor {name}")
        if tuple(weights[name].shape) != shape:
            raise CheckpointInvalid(f"{path}: {name} has shape {tuple(weights[name].shape)}, not {shape}")
        return weights[name].to(device=decoder.embedding.device, dtype=dtype)

    def head(number: int) -> MedusaHead:
        blocks = tuple(
            plain_linear(
                take(f"{number}.{block}.linear.weight", hidden, hidden),
                take(f"{number}.{block}.linear.bias", hidden),
            )
            for block in range(layers)
        )
        own = f"{number}.{layers}.weight"
        out = plain_linear(take(own, vocab, hidden)) if own in weights else decoder.head
        return MedusaHead(blocks=blocks, out=out)

    layers = integer(config, "medusa_num_layers", 1)
    return tuple(head(number) for number in range(integer(config, "medusa_num_heads")))


class MedusaDrafter:
    """A drafter with Medusa heads: right after a token was sampled it makes the drafts for the next step."""

    def __init__(
        self, heads: Items[MedusaHead], tree: CandidateTree, *, cost: float, batch_size_max: int
    ) -> None:
        self.cost = cost
        self.tree = tree.shape
        self._heads = tuple(heads)[: tree.heads]
        self._candidates = tree.candidates
        self._ranks = 1 + max(rank for _, rank in tree.candidates)
        self._batch_size_max = batch_size_max
        # The tree of the first drafts; None for a chain, which needs no tree.
        self._shapes = {
            size: None if (shape := tree.shape.first(size)).is_chain else shape for size in tree.shape.sizes
        }
        # The drafts of each sequence, and the number of tokens that they follow.
        self._drafts: WeakKeyDictionary[Sequence, tuple[int, list[int]]] = WeakKeyDictionary()

    def draft_count(self, sequence: Sequence, limit: int) -> int:
        """Put the known drafts into the sequence, and return how many there are."""
        num_tokens, drafts = self._drafts.get(sequence, (0, []))
        size = max(size for size in self._shapes if size <= limit)
        sequence.drafts = drafts[:size] if num_tokens == len(sequence.tokens) else []
        sequence.draft_tree = self._shapes[size]
        return len(sequence.drafts)

    def propose(self, items: Items[StepItem]) -> dict[Sequence, Tensor]:
        """Return nothing: the drafts were made after the previous step."""
        return {}

    def after_step(self, step: ComputedStep) -> None:
        """Make drafts after every token that was just sampled, unless the batch is too large for drafts."""
        sampling = [item.sequence for item in step.items if item.samples]
        if not 0 < len(sampling) <= self._batch_size_max:
            return
        best = [head(step.hidden).topk(self._ranks, dim=-1).indices for head in self._heads]
        # [sampling items, heads, ranks]
        proposed = torch.stack(best, dim=1).tolist()
        for sequence, tokens, ahead in zip(sampling, step.tokens, proposed, strict=True):
            drafts = [ahead[head][rank] for head, rank in self._candidates]
            self._drafts[sequence] = len(sequence.tokens) + len(tokens), drafts
