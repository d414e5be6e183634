"""The mixes of tenants: the requests of each, and which of them are the victims of a flood."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import merge
from pathlib import Path
from random import Random

import msgspec

from policies.simulation.trace import BLOCK_TOKENS, TraceRequest, paced, read_trace
from policies.simulation.workloads import WorkloadParameters, generated

CONVERSATIONS = Path(__file__).parents[2] / "data" / "mooncake" / "conversation_trace.jsonl"
LEAD_SECONDS = 20.0
"""Seconds of the victims alone, before the other tenants begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A mix: `victims` stay under their share, `others` do not; `weights` of tenants are 1 by default."""

    name: str
    victims: Sequence[TraceRequest]
    others: Sequence[TraceRequest]
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def all(self) -> list[TraceRequest]:
        return list(merge(self.victims, self.others, key=lambda request: request.at))


def flood(seconds: float, seed: int = 0) -> Mix:
    """Mix two tenants with conversations and a third that asks for ten times its share, all prompts new."""
    return Mix(
        name="flood at 10x its share",
        victims=_conversations(seconds),
        others=_steadily("flood", _conversation_lengths(seed), 40.0, seconds, seed),
    )


def chats(seconds: float, seed: int = 0) -> Mix:
    """Mix two tenants with short, mostly cached prompts and the same flood."""
    return Mix(
        name="flood beside short chats",
        victims=_chats(seconds, seed),
        others=_steadily("flood", _conversation_lengths(seed), 40.0, seconds, seed),
    )


def long_prompts(seconds: float, seed: int = 0) -> Mix:
    """Mix the same two tenants and a third with prompts of 48k tokens, three a second."""
    return Mix(
        name="48k-token prompts",
        victims=_conversations(seconds),
        others=_steadily("long", lambda: (48_000, 200), 3.0, seconds, seed),
    )


def long_beside_chats(seconds: float, seed: int = 0) -> Mix:
    """Mix the tenants with short prompts and the one with prompts of 48k tokens."""
    return Mix(
        name="48k-token prompts beside short chats",
        victims=_chats(seconds, seed),
        others=long_prompts(seconds, seed).others,
    )


def long_answers(seconds: float, seed: int = 0) -> Mix:
    """Mix the tenants with short prompts and one with short prompts and long answers, which fill engines' slots."""
    random = Random(f"answers {seed}")
    return Mix(
        name="long answers beside short chats",
        victims=_chats(seconds, seed),
        others=_steadily("answers", lambda: (random.randint(100, 500), 800), 200.0, seconds, seed),
    )


def many(seconds: float, seed: int = 0) -> Mix:
    """Mix a thousand tenants with Zipf weights that ask for equal amounts, in all twice what the fleet can do.

    The victims are the ten tenants with the largest weights, which ask for less than their share.
    """
    random, weights = Random(seed), {f"t{at:04}": 1 / (at + 1) for at in range(1000)}
    requests = _steadily("", lambda: (random.randint(2000, 10_000), 150), 60.0, seconds, seed, begin=0.0)
    named = [msgspec.structs.replace(one, tenant=f"t{random.randrange(1000):04}") for one in requests]
    return Mix(
        name="1,000 tenants with Zipf weights",
        victims=[one for one in named if one.tenant < "t0010"],
        others=[one for one in named if one.tenant >= "t0010"],
        weights=weights,
    )


def locality(seconds: float, seed: int = 0) -> Mix:
    """Mix agents with long, mostly cached prompts, more than the fleet has room for, and two tenants that chat."""
    load = WorkloadParameters(requests=round(60 * seconds), rate=12.0, tenants=4, seed=seed)
    agents = [one for one in generated("agents", load) if one.at < seconds]
    chats = generated(
        "chat", WorkloadParameters(requests=round(4 * seconds), rate=0.8, tenants=2, skew=0.0, seed=seed + 1)
    )
    return Mix(
        name="agents with long shared prefixes",
        victims=[msgspec.structs.replace(c, tenant=f"chat-{c.tenant}") for c in chats if c.at < seconds],
        others=agents,
    )


MIXES: Mapping[str, Callable[[float], Mix]] = {
    "flood": flood,
    "chats": chats,
    "long": long_prompts,
    "long-chats": long_beside_chats,
    "answers": long_answers,
    "many": many,
    "locality": locality,
}


@lru_cache(maxsize=1)
def _trace() -> list[TraceRequest]:
    return paced(read_trace(CONVERSATIONS))


def _conversations(seconds: float) -> list[TraceRequest]:
    """Return the public trace, its requests in turn of two tenants."""
    return [
        msgspec.structs.replace(request, tenant=f"victim-{number % 2}")
        for number, request in enumerate(_trace())
        if request.at < seconds
    ]


def _chats(seconds: float, seed: int) -> list[TraceRequest]:
    """Return the chats of two tenants."""
    load = WorkloadParameters(requests=round(20 * seconds), rate=1.2, tenants=2, skew=0.0, seed=seed)
    return [one for one in generated("chat", load) if one.at < seconds]


def _conversation_lengths(seed: int) -> Callable[[], tuple[int, int]]:
    random, trace = Random(f"lengths {seed}"), _trace()

    def lengths() -> tuple[int, int]:
        one = random.choice(trace)
        return one.prompt_tokens, one.output_tokens

    return lengths


def _steadily(
    tenant: str,
    lengths: Callable[[], tuple[int, int]],
    rate: float,
    seconds: float,
    seed: int,
    begin: float = LEAD_SECONDS,
) -> list[TraceRequest]:
    """Return prompts that share nothing, so many a second."""
    random, at, found = Random(f"{tenant} {seed}"), begin, []
    while (at := at + random.expovariate(rate)) < seconds:
        prompt_tokens, output_tokens = lengths()
        count = -(-prompt_tokens // BLOCK_TOKENS)
        first = random.getrandbits(62)
        found.append(
            TraceRequest(
                at=at,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                blocks=array("Q", range(first, first + count)),
                tenant=tenant,
            )
        )
    return found
