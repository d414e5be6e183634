"""Fits Medusa heads to a model's own answers, by linear regression in one pass over the texts.

    python -m workers.engine.fit_medusa --model DIR --out HEADS [--prompts FILE] [--heads 4]

The model answers prompts greedily, and an observing drafter records each hidden state x and the tokens after it.
Head h is the matrix W [vocab, hidden] that minimises

    sum |W x - one_hot(the token h + 2 positions on)|^2 + ridge |W|^2

    W = Y^T X (X^T X + ridge I)^-1      X^T X [hidden, hidden] and Y^T X [vocab, hidden], sums over all positions

So memory does not grow with the texts. The heads are evaluated on texts that they were not fitted to: how often
the candidate of each rank is right, which gives the shape of the tree of drafts (`speculative.medusa_tree`), and
how many drafts the engine accepts in decoding these texts, in a chain and in a tree. The paper (Cai et al. 2024,
arXiv 2401.10774, section 2.2.1) trains the same heads by gradient descent, with a residual block before the matrix,
which is zero here; its training gives better heads, and files in the same format.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import Device, EngineConfig
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.engine import Engine
from workers.engine.engine_parts import load_engine_parts
from workers.engine.errors import ConfigInvalid, EngineError
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.counters import SpecCounters
from workers.engine.scheduler.drafter import ComputedStep
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import Sequence as Running
from workers.engine.speculative.medusa import HEADS_FILE
from workers.engine.speculative.medusa_tree import ACCURACIES, RANKS_MAX
from workers.engine.tokenization.tokenizer import Tokenizer

RIDGE = 1e-3
"""The ridge penalty, as a share of the mean of X^T X's diagonal, which is the scale of the states."""
PROMPT_TOKENS = 16
"""Tokens of a random prompt."""


class _StateRecorder:
    """A Drafter that proposes no drafts and records each request's hidden states and the tokens they gave."""

    cost = 0.0
    tree = None

    def __init__(self) -> None:
        self.states: dict[str, list[Tensor]] = {}
        self.tokens: dict[str, list[int]] = {}

    def draft_count(self, _sequence: Running, _limit: int) -> int:
        """Return 0: there are no drafts."""
        return 0

    def propose(self, _items: Sequence[StepItem]) -> dict[Running, Tensor]:
        """Return nothing: no draft is drawn."""
        return {}

    def after_step(self, step: ComputedStep) -> None:
        """Record the states and the tokens of one step."""
        sampling = [item.sequence.id for item in step.items if item.samples]
        for name, state, tokens in zip(sampling, step.hidden, step.tokens, strict=True):
            self.states.setdefault(name, []).append(state.double().cpu())
            self.tokens.setdefault(name, []).extend(tokens)

    def text(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the states [n, hidden] and the tokens [n] of a request, and drop the record."""
        return torch.stack(self.states.pop(name)), torch.tensor(self.tokens.pop(name))


class RidgeRegression:
    """A ridge regression of one-hot tokens on states, accumulated as sums."""

    def __init__(self, vocab: int, hidden: int) -> None:
        self._states = torch.zeros(hidden, hidden, dtype=torch.float64)
        self._wanted = torch.zeros(vocab, hidden, dtype=torch.float64)

    def add(self, states: Tensor, tokens: Tensor) -> None:
        """Add n positions: `states` [n, hidden] float64, and the tokens to be predicted there, [n]."""
        self._states += states.T @ states
        self._wanted.index_add_(0, tokens, states)

    def solve(self, ridge: float) -> Tensor:
        """Return the fitted matrix [vocab, hidden], float32."""
        penalty = ridge * self._states.diagonal().mean()
        penalised = self._states + penalty * torch.eye(len(self._states), dtype=torch.float64)
        solved: Tensor = torch.linalg.solve(penalised, self._wanted.T)
        return solved.T.float().contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedHeads:
    """Fitted Medusa heads, and their accuracy on the held out texts."""

    heads: tuple[Tensor, ...]
    """Each [vocab, hidden], the nearest position first."""
    accuracies: tuple[tuple[float, ...], ...]
    """For each head how often its likeliest token was right, its second one, and so on; empty if not measured."""


def fit_heads(
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    *,
    heads: int,
    tokens: int,
    held_out: int = 0,
    ridge: float = RIDGE,
) -> FittedHeads:
    """Fit heads for the model of `config` to its own answers.

    Args:
        config: the engine's settings, with the model.
        prompts: the prompts that the model answers.
        heads: the number of heads, each predicting one position further.
        tokens: the tokens of each answer.
        held_out: the number of prompts, from the last, that the heads are evaluated on instead.
        ridge: the penalty, as a share of the scale of the states.

    Raises:
        ConfigInvalid: the numbers leave nothing to fit to.
    """
    if not 0 <= held_out < len(prompts):
        raise ConfigInvalid(f"{held_out} of {len(prompts)} prompts held out leave none to fit to")
    if heads < 1:
        raise ConfigInvalid(f"there must be at least one head, not {heads}")
    if tokens < heads + 2:
        raise ConfigInvalid(f"{heads} heads need answers of at least {heads + 2} tokens, not {tokens}")
    sums: list[RidgeRegression] = []
    kept: list[tuple[Tensor, Tensor]] = []
    for number, (states, answered) in enumerate(_answers(config, prompts, tokens)):
        if number >= len(prompts) - held_out:
            kept.append((states, answered))
            continue
        sums = sums or [RidgeRegression(_vocab(config), states.shape[1]) for _ in range(heads)]
        for head, regression in enumerate(sums):
            regression.add(*_pairs(states, answered, head))
    solved = tuple(regression.solve(ridge) for regression in sums)
    accuracies = tuple(_accuracies(head, place, kept) for place, head in enumerate(solved)) if kept else ()
    return FittedHeads(heads=solved, accuracies=accuracies)


def save_heads(fitted: FittedHeads, directory: Path, *, ranks: int = RANKS_MAX) -> None:
    """Write the heads into `directory`, in the format of the paper's authors, with the accuracies of `ranks` ranks.

    With one rank the drafts are a chain.
    """
    hidden = fitted.heads[0].shape[1]
    weights: dict[str, Tensor] = {}
    for number, head in enumerate(fitted.heads):
        # x + SiLU(0 x + 0) = x: a residual block that changes nothing.
        weights[f"{number}.0.linear.weight"] = torch.zeros(hidden, hidden)
        weights[f"{number}.0.linear.bias"] = torch.zeros(hidden)
        weights[f"{number}.1.weight"] = head
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / HEADS_FILE)
    described: dict[str, object] = {"medusa_num_heads": len(fitted.heads), "medusa_num_layers": 1}
    if fitted.accuracies:
        described[ACCURACIES] = [by_rank[:ranks] for by_rank in fitted.accuracies]
    (directory / "config.json").write_text(json.dumps(described), encoding="utf-8")


def accepted_drafts(
    config: EngineConfig, directory: Path, prompts: Sequence[Sequence[int]], *, drafts: int, tokens: int
) -> SpecCounters:
    """Return the counts of drafts while the engine decodes these prompts with the heads in `directory`."""
    speculation = SpecConfig(method="medusa", model=directory, num_tokens=drafts, adaptive=False)
    engine = Engine.load(replace(config, speculation=speculation))
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    for first in range(0, len(prompts), config.running_max):
        for number, prompt in enumerate(prompts[first : first + config.running_max]):
            engine.submit(Request(id=str(number), prompt=prompt, params=params))
        while engine.has_work:
            engine.step()
    return engine.speculation


def _answers(
    config: EngineConfig, prompts: Sequence[Sequence[int]], tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the states [n, hidden] and their tokens [n] of each answer, computed a batch of prompts at a time."""
    watcher = _StateRecorder()
    engine = Engine(config, load_engine_parts(config, watcher))
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    for first in range(0, len(prompts), config.running_max):
        batch = [str(number) for number in range(first, min(first + config.running_max, len(prompts)))]
        for name in batch:
            engine.submit(Request(id=name, prompt=prompts[int(name)], params=params))
        while engine.has_work:
            engine.step()
        for name in batch:
            yield watcher.text(name)


def _pairs(states: Tensor, answered: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Return the states that a head reads and the tokens that it predicts, which come after the states' own."""
    ahead = head + 1
    return states[:-ahead], answered[ahead:]


def _accuracies(head: Tensor, place: int, texts: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, ...]:
    """Return how often the head's likeliest token was generated, its second one, and so on, as shares."""
    pairs = [_pairs(states, answered, place) for states, answered in texts]
    hits = [
        (states.float() @ head.T).topk(min(RANKS_MAX, len(head)), dim=1).indices == wanted[:, None]
        for states, wanted in pairs
    ]
    # Few texts may give a rank more hits than the rank before it.
    return tuple(accumulate(torch.cat(hits).double().mean(dim=0).tolist(), min))


def _vocab(config: EngineConfig) -> int:
    return ModelSpec.from_directory(config.model).vocab_size


def main(arguments: list[str] | None = None) -> int:
    """Fit the heads, write them, print their accuracies, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        fit_and_report(
            options.model,
            options.out,
            _prompts(options),
            heads=options.heads,
            tokens=options.tokens,
            held_out=options.held_out,
            drafts=options.drafts,
            device=options.device,
        )
    except (EngineError, OSError, UnicodeDecodeError) as err:
        print(f"fit_medusa: {err}", file=sys.stderr)
        return 1
    return 0


def fit_and_report(
    model: Path,
    out: Path,
    prompts: Sequence[Sequence[int]],
    *,
    heads: int,
    tokens: int,
    held_out: int,
    drafts: int,
    device: Device = "auto",
) -> None:
    """Fit heads, write them, and print how often they are right and how many of their drafts are accepted.

    Args:
        model: the directory of the model.
        out: the directory for the heads.
        prompts: the prompts that the model answers.
        heads: the number of heads.
        tokens: the tokens of each answer.
        held_out: the number of prompts, from the last, that the heads are evaluated on instead.
        drafts: the most drafts of the tree that is evaluated.
        device: where the model computes.

    Raises:
        EngineError: the model cannot be loaded, or the numbers leave nothing to fit to.
    """
    config = EngineConfig(model=model, dtype="float32", device=device, seed=0)
    began = time.perf_counter()
    fitted = fit_heads(config, prompts, heads=heads, tokens=tokens, held_out=held_out)
    seconds = time.perf_counter() - began
    for number, by_rank in enumerate(fitted.accuracies):
        first, three = by_rank[0], sum(by_rank[:3])
        print(
            f"head {number}: right for {100 * first:.0f} % of the tokens of {held_out} held out answers, "
            f"one of its first three for {100 * three:.0f} %"
        )
    if held_out:
        kept = prompts[len(prompts) - held_out :]
        for name, count, ranks in (("chain", heads, 1), ("tree", drafts, RANKS_MAX)):
            save_heads(fitted, out, ranks=ranks)
            counted = accepted_drafts(config, out, kept, drafts=count, tokens=tokens)
            print(
                f"{name} of {counted.num_draft_tokens // max(1, counted.num_drafts)} drafts: "
                f"{100 * counted.acceptance_rate:.0f} % accepted, {counted.accepted_length:.2f} tokens a step"
            )
    else:
        save_heads(fitted, out)
    print(f"fitted in {seconds:.1f} s, written to {out}")


def _prompts(options: argparse.Namespace) -> list[list[int]]:
    """Return the lines of the prompts file as tokens, or random tokens without a file."""
    if options.prompts is None:
        chance, vocab = random.Random(0), ModelSpec.from_directory(options.model).vocab_size
        # Ids below 16 are left to special tokens.
        return [[chance.randrange(16, vocab) for _ in range(PROMPT_TOKENS)] for _ in range(options.random)]
    tokenizer = Tokenizer(options.model)
    lines = options.prompts.read_text(encoding="utf-8").splitlines()
    return [tokenizer.encode(line, add_special_tokens=True) for line in lines if line.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workers.engine.fit_medusa", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="directory of the model's checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="directory to write the heads to")
    parser.add_argument(
        "--prompts",
        type=Path,
        help="a text file with one prompt on each line; without it prompts are random tokens",
    )
    parser.add_argument("--random", type=int, default=256, help="number of random prompts")
    parser.add_argument(
        "--heads", type=int, default=4, help="number of heads, each predicting one token further"
    )
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument(
        "--held-out",
        type=int,
        default=0,
        help="number of prompts that the heads are evaluated on instead of fitted to",
    )
    parser.add_argument(
        "--drafts", type=int, default=12, help="most drafts of the tree that is evaluated on these prompts"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
