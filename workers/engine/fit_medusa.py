"""Medusa heads for a model, fitted to what it says itself. No training: linear regression, in one pass over texts.

    python -m workers.engine.fit_medusa --model DIR --out HEADS [--prompts FILE] [--heads 4]

The model answers prompts, greedily; whoever watches it sees each state x and the tokens that came after it. Head h
is the matrix W [vocab, hidden] which makes  sum |W x - one_hot(token h + 2 places on)|^2 + pull |W|^2  smallest:

    W = Y^T X (X^T X + pull I)^-1        X^T X [hidden, hidden] and Y^T X [vocab, hidden] are sums over all places

So memory does not grow with the texts. What a head is worth is told by texts that it was not fitted to. The paper
(Cai et al. 2024, arXiv 2401.10774, section 2.2.1) trains the same heads by gradient descent, with a residual block
before the matrix, which is left empty here; its training gives better heads, and files in the same form.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.engine_parts import load_engine_parts
from workers.engine.errors import ConfigInvalid, EngineError
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.drafter import Computed
from workers.engine.scheduler.plan import Item
from workers.engine.scheduler.sequence import Sequence as Running
from workers.engine.speculative.medusa import FILE
from workers.engine.tokenization.tokenizer import Tokenizer

RIDGE = 1e-3
"""The pull to zero, as a share of the mean of X^T X's diagonal: how loud the states are."""
PROMPT_TOKENS = 16


class _Watcher:
    """A Drafter that guesses nothing and keeps what it sees: each request's states, and the tokens they gave."""

    cost = 0.0

    def __init__(self) -> None:
        self.states: dict[str, list[Tensor]] = {}
        self.tokens: dict[str, list[int]] = {}

    def ready(self, _sequence: Running, _limit: int) -> int:
        """As promised by Drafter: never any."""
        return 0

    def propose(self, _items: Sequence[Item]) -> dict[Running, Tensor]:
        """As promised by Drafter; nobody asks."""
        return {}

    def follow(self, step: Computed) -> None:
        """As promised by Drafter."""
        sampling = [item.sequence.id for item in step.items if item.samples]
        for name, state, tokens in zip(sampling, step.hidden, step.tokens, strict=True):
            self.states.setdefault(name, []).append(state.double().cpu())
            self.tokens.setdefault(name, []).extend(tokens)

    def text(self, name: str) -> tuple[Tensor, Tensor]:
        """States [n, hidden] and tokens [n] of a request, which are forgotten here."""
        return torch.stack(self.states.pop(name)), torch.tensor(self.tokens.pop(name))


class Regression:
    """Ridge regression of one-hot tokens on states, as sums."""

    def __init__(self, vocab: int, hidden: int) -> None:
        self._states = torch.zeros(hidden, hidden, dtype=torch.float64)
        self._wanted = torch.zeros(vocab, hidden, dtype=torch.float64)

    def add(self, states: Tensor, tokens: Tensor) -> None:
        """So many places more: `states` [n, hidden] float64, and what was to be guessed there, [n]."""
        self._states += states.T @ states
        self._wanted.index_add_(0, tokens, states)

    def solve(self, ridge: float) -> Tensor:
        """The matrix [vocab, hidden], float32."""
        pull = ridge * self._states.diagonal().mean()
        pulled = self._states + pull * torch.eye(len(self._states), dtype=torch.float64)
        solved: Tensor = torch.linalg.solve(pulled, self._wanted.T)
        return solved.T.float().contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Heads, nearest place first, each [vocab, hidden]; and how often each was right about texts held out."""

    heads: tuple[Tensor, ...]
    right: tuple[float, ...]


def fit_heads(
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    *,
    heads: int,
    tokens: int,
    held_out: int = 0,
    ridge: float = RIDGE,
) -> Fitted:
    """Heads for `config.model` from its answers of `tokens` tokens; the last `held_out` prompts only judge them.

    ConfigInvalid where that leaves nothing to fit to.
    """
    if not 0 <= held_out < len(prompts):
        raise ConfigInvalid(f"{held_out} of {len(prompts)} prompts held out leave none to fit to")
    if heads < 1:
        raise ConfigInvalid(f"there must be at least one head, not {heads}")
    if tokens < heads + 2:
        raise ConfigInvalid(f"{heads} heads need answers of at least {heads + 2} tokens, not {tokens}")
    sums: list[Regression] = []
    kept: list[tuple[Tensor, Tensor]] = []
    for number, (states, said) in enumerate(_answers(config, prompts, tokens)):
        if number >= len(prompts) - held_out:
            kept.append((states, said))
            continue
        sums = sums or [Regression(_vocab(config), states.shape[1]) for _ in range(heads)]
        for head, regression in enumerate(sums):
            regression.add(*_pairs(states, said, head))
    solved = tuple(regression.solve(ridge) for regression in sums)
    return Fitted(heads=solved, right=tuple(_right(head, place, kept) for place, head in enumerate(solved)))


def save_heads(fitted: Fitted, directory: Path) -> None:
    """Write them as the paper's authors do."""
    hidden = fitted.heads[0].shape[1]
    weights: dict[str, Tensor] = {}
    for number, head in enumerate(fitted.heads):
        # x + SiLU(0 x + 0) = x: a block that does nothing.
        weights[f"{number}.0.linear.weight"] = torch.zeros(hidden, hidden)
        weights[f"{number}.0.linear.bias"] = torch.zeros(hidden)
        weights[f"{number}.1.weight"] = head
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / FILE)
    described = {"medusa_num_heads": len(fitted.heads), "medusa_num_layers": 1}
    (directory / "config.json").write_text(json.dumps(described), encoding="utf-8")


def _answers(
    config: EngineConfig, prompts: Sequence[Sequence[int]], tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """States [n, hidden] and the token that each gave [n], of each answer; a batch of prompts at a time."""
    watcher = _Watcher()
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


def _pairs(states: Tensor, said: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """What a head sees, and what it is to guess: a state gives a token, and the head guesses one further on."""
    ahead = head + 1
    return states[:-ahead], said[ahead:]


def _right(head: Tensor, place: int, texts: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Share of the places at which its likeliest token came."""
    pairs = [_pairs(states, said, place) for states, said in texts]
    hits = [(states.float() @ head.T).argmax(dim=1) == wanted for states, wanted in pairs]
    return torch.cat(hits).double().mean().item() if hits else 0.0


def _vocab(config: EngineConfig) -> int:
    return ModelSpec.from_directory(config.model).vocab_size


def main(arguments: list[str] | None = None) -> int:
    """Fit, write, and say how good they are; the exit code."""
    options = _parser().parse_args(arguments)
    config = EngineConfig(model=options.model, dtype="float32", device=options.device, seed=0)
    try:
        prompts = _prompts(options)
        fitted = fit_heads(
            config, prompts, heads=options.heads, tokens=options.tokens, held_out=options.held_out
        )
        save_heads(fitted, options.out)
    except (EngineError, OSError, UnicodeDecodeError) as err:
        print(f"fit_medusa: {err}", file=sys.stderr)
        return 1
    for number, right in enumerate(fitted.right):
        print(f"head {number}: right about {100 * right:.0f} % of {options.held_out} answers held out")
    print(f"written to {options.out}")
    return 0


def _prompts(options: argparse.Namespace) -> list[list[int]]:
    """The lines of the file, or tokens by chance."""
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
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's directory")
    parser.add_argument("--out", type=Path, required=True, help="directory for the heads")
    parser.add_argument(
        "--prompts", type=Path, help="a text file, one prompt a line; without it random tokens"
    )
    parser.add_argument("--random", type=int, default=256, help="how many random prompts")
    parser.add_argument("--heads", type=int, default=4, help="places to guess ahead")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--held-out", type=int, default=0, help="prompts that only judge the heads")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
