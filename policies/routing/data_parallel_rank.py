"""Which data-parallel rank of a worker computes a prompt: each has a cache and a queue of its own.

    cost of a rank = uncached tokens ahead + streams that run, as tokens + the prompt's own tokens that it lacks

The least of them; among equals the prompt's home. Without a load feed each gateway knows well only what it sent
itself, and those that know nothing of a prompt should agree all the same: where no rank is known to hold any of it,
the home is held to have half of it.
"""

from collections.abc import Sequence

import msgspec

STREAM_TOKENS = 32
"""What a running stream weighs: it makes each step of its rank a little longer."""

HOME_CREDIT = 0.5


class RankLoad(msgspec.Struct, kw_only=True, gc=False):
    """What is under way on one rank. `tokens_queued`: uncached, of prompts that have not brought a first token."""

    tokens_queued: int = 0
    streams: int = 0


def best_rank(loads: Sequence[RankLoad], held_tokens: Sequence[int], prompt_tokens: int, home: int) -> int:
    """`held_tokens`: of the prompt, by rank. `home`: any number, the same for the same prompt everywhere."""
    home %= len(loads)
    if not any(held_tokens):
        held_tokens = [int(prompt_tokens * HOME_CREDIT) if rank == home else 0 for rank in range(len(loads))]

    def cost(rank: int) -> tuple[int, bool]:
        load = loads[rank]
        uncached = prompt_tokens - held_tokens[rank]
        return load.tokens_queued + load.streams * STREAM_TOKENS + uncached, rank != home

    return min(range(len(loads)), key=cost)
