"""Traffic of all service classes: voice, code and chat at a given rate, and batch prompts that never end."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from policies.simulation.class_lengths import INTERACTIVE, Lengths, long_answers, long_batch, short_batch

RATE = 54.0
"""Voice, code and chat requests a second: 70 % of what two workers of 8B class can do (policies/simulation)."""

BATCH_IN_FLIGHT = 256
"""Batch requests that their sender keeps open."""

TARGETS = {"voice": 0.15, "code": 0.2, "chat": 0.5, "batch": 2.0}
"""Seconds to the first token, as the gateway's defaults have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRequest:
    """One request; every prompt is new."""

    at: float
    service_class: str
    prompt_tokens: int
    output_tokens: int


def interactive(rate: float, seconds: float, seed: int) -> Iterator[ClassRequest]:
    """Yield voice, code and chat requests at random times."""
    random, at = Random(f"classes {seed}"), 0.0
    while (at := at + random.expovariate(rate)) < seconds:
        name = random.choice(("voice", "code", "chat"))
        prompt_tokens, output_tokens = INTERACTIVE[name](random)
        yield ClassRequest(
            at=at, service_class=name, prompt_tokens=prompt_tokens, output_tokens=output_tokens
        )


BATCH: dict[str, Lengths] = {
    "short batch prompts": short_batch,
    "long batch prompts": long_batch,
    "batch prompts with long answers": long_answers,
}
