"""The orders that a subject gets, and its results, as JSON over standard input and output.

A subject may run under another Python: this module needs nothing but the standard library.

    seconds(1)        the prompts, and the first token of each       -> prefill tokens per second
    seconds(1 + n)    the same with n decode steps more              -> decode tokens per second, by the difference
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], object]
"""Generates so many tokens after each prompt, whatever their end, and returns when all are there."""
FIRST_TOKEN = 300
"""The least token of prompts: not a special one."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The measurements that a subject is to make."""

    model: str
    device: str
    dtype: str
    vocab: int
    batches: tuple[int, ...]
    prompt_tokens: int
    decode_steps: int
    rounds: int
    settings: dict[str, object]
    """Settings of this subject alone."""

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt_tokens + self.decode_steps + 1


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speed of one subject with one batch."""

    batch: int
    prefill: float
    """Prompt tokens per second, to the first token of all."""
    decode: float
    """Generated tokens per second after the first."""


def write_order(order: Order) -> str:
    """Return the order as one line."""
    return json.dumps(asdict(order))


def read_order() -> Order:
    """Return the order from standard input."""
    values = json.loads(sys.stdin.read())
    return Order(**values | {"batches": tuple(values["batches"])})


def read_speeds(output: str) -> list[Speed]:
    """Return the speeds in a subject's output, of which the last line counts."""
    return [Speed(**values) for values in json.loads(output.splitlines()[-1])]


def answer(order: Order, generate: Generate) -> None:
    """Measure each batch, and write the speeds as the last line of standard output."""
    print("\n" + json.dumps([asdict(measure(order, generate, batch)) for batch in order.batches]), flush=True)


def measure(
    order: Order, generate: Generate, batch: int, clock: Callable[[], float] = time.perf_counter
) -> Speed:
    """Return the medians of the rounds; the first round does not count."""
    chance = random.Random(batch)

    def seconds(new_tokens: int) -> float:
        prompts = random_prompts(chance, batch, order.prompt_tokens, order.vocab)
        began = clock()
        generate(prompts, new_tokens)
        return clock() - began

    pairs = [(seconds(1), seconds(1 + order.decode_steps)) for _ in range(1 + order.rounds)][1:]
    first = statistics.median(short for short, _ in pairs)
    rest = statistics.median(long - short for short, long in pairs)
    return Speed(
        batch=batch,
        prefill=batch * order.prompt_tokens / first,
        decode=batch * order.decode_steps / rest if rest > 0 else float("nan"),
    )


def random_prompts(chance: random.Random, count: int, tokens: int, vocab: int) -> Prompts:
    """Return random prompts, so that no prefix cache knows them."""
    choices: Sequence[int] = range(FIRST_TOKEN, vocab)
    return [chance.choices(choices, k=tokens) for _ in range(count)]
