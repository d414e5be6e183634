"""The mixes of tenants: who asks for what, and who of them are the victims."""

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
"""Before the others begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """`victims`: who stays under its share; `others`: who does not. `weights`: of tenants, 1 by default."""

    name: str
    victims: Sequence[TraceRequest]
    others: Sequence[TraceRequest]
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def all(self) -> list[TraceRequest]:
        return list(merge(self.victims, self.others, key=lambda request: request.at))


def flood(seconds: float, seed: int = 0) -> Mix:
    """Two tenants with conversations, and a third with ten times its share of the fleet, all of it new."""
    return Mix(
        name="flood at 10x its share",
        victims=_conversations(seconds),
        others=_steadily("flood", _conversation_lengths(seed), 40.0, seconds, seed),
    )


def long_prompts(seconds: float, seed: int = 0) -> Mix:
    """The same two, and a third with prompts of 48k tokens, three in a second."""
    return Mix(
        name="48k-token prompts",
        victims=_conversations(seconds),
        others=_steadily("long", lambda: (48_000, 200), 3.0, seconds, seed),
    )


def many(seconds: float, seed: int = 0) -> Mix:
    """A thousand tenants with Zipf weights ask for equally much, twice as much as there is. The victims are the ten
    weightiest, who ask for less than their share."""
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
    """Agents with long prompts that are nearly all cached, more than there is room for, and two that chat."""
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
    "long": long_prompts,
    "many": many,
    "locality": locality,
}


@lru_cache(maxsize=1)
def _trace() -> list[TraceRequest]:
    return paced(read_trace(CONVERSATIONS))


def _conversations(seconds: float) -> list[TraceRequest]:
    """The public trace, its requests in turn of two tenants."""
    return [
        msgspec.structs.replace(request, tenant=f"victim-{number % 2}")
        for number, request in enumerate(_trace())
        if request.at < seconds
    ]


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
    """Prompts that nobody has seen before, so many a second."""
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
