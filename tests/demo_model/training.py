"""The training of the demo's model: rows of chats, a loss on the answers, two optimizers, a falling rate.

Muon (Jordan et al. 2024) moves the matrices of the layers and AdamW everything else; on a corpus of this size Muon
needs about half as many steps. The loss counts every token of an answer and one in ten of all other tokens: what a
user says follows no rule that is worth learning. The last rows are longer, as chats with long system prompts are.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from tests.demo_model.corpus import chat
from tests.demo_model.llama import TrainedLlama

TURN_BEGIN, TURN_END = "<|im_start|>", "<|im_end|>"
OTHER_TOKENS_SHARE = 0.1
MATRIX_RATE, OTHER_RATE = 0.02, 0.005
WARM_UP_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the training: batches of one shape, of chats of one length."""

    steps: int
    rows: int
    length: int
    sentences_max: int
    """The most sentences of a system prompt."""


PHASES = (
    Phase(steps=560, rows=8, length=256, sentences_max=3),
    Phase(steps=40, rows=1, length=2048, sentences_max=24),
)


class AnswerFinder:
    """Finds the tokens of the answers in rows of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._begin, self._end = (tokenizer.token_to_id(mark) for mark in (TURN_BEGIN, TURN_END))
        self._role = tokenizer.encode("assistant\n").ids

    def find(self, row: list[int]) -> list[bool]:
        """Return for each token whether it belongs to an answer, its end included."""
        found, inside, place = [False] * len(row), False, 0
        while place < len(row):
            if row[place] == self._begin:
                inside = row[place + 1 : place + 1 + len(self._role)] == self._role
                place += 1 + len(self._role) if inside else 1
                continue
            found[place] = inside
            inside = inside and row[place] != self._end
            place += 1
        return found


def batches(phase: Phase, tokenizer: Tokenizer, chance: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a phase: tokens [rows, length + 1], and which of them belong to answers."""
    finder = AnswerFinder(tokenizer)
    for _ in range(phase.steps):
        rows = []
        for _ in range(phase.rows):
            row: list[int] = []
            while len(row) <= phase.length:
                row += tokenizer.encode(chat(chance, sentences_max=phase.sentences_max)).ids
            rows.append(row[: phase.length + 1])
        yield torch.tensor(rows), torch.tensor([finder.find(row) for row in rows])


def train(model: TrainedLlama, tokenizer: Tokenizer, seed: int) -> Iterator[tuple[int, float]]:
    """Train the model, and yield each step with its loss."""
    chance, total = random.Random(seed), sum(phase.steps for phase in PHASES)
    optimizers = [
        torch.optim.Muon(model.hidden_matrices, lr=MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(model.other_weights, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    everything = (batch for phase in PHASES for batch in batches(phase, tokenizer, chance))
    for step, (tokens, answers) in enumerate(everything):
        for optimizer, rate in zip(optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * _rate_share(step, total)
            optimizer.zero_grad()
        loss = _loss(model, tokens, answers)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        yield step, loss.item()


def _loss(model: TrainedLlama, tokens: Tensor, answers: Tensor) -> Tensor:
    counted = answers[:, 1:] | (torch.rand(answers[:, 1:].shape) < OTHER_TOKENS_SHARE)
    states = model.states(tokens[:, :-1])
    return F.cross_entropy(model.logits(states[counted]), tokens[:, 1:][counted])


def _rate_share(step: int, total: int) -> float:
    """Return the share of the full rate: it rises at first, and falls to zero over the last half."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, 2 * (total - step) / total)
