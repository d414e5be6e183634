"""The choice of a data-parallel rank of a worker: each rank has a KV cache and a queue of its own.

    cost of a rank = uncached tokens ahead + STREAM_TOKENS * running streams + the prompt's uncached tokens there

The rank with the least cost is chosen; among equals the prompt's home rank. Without a load feed each gateway counts
only what it sent itself, and gateways without any record of a prompt should still agree on its rank: where no rank
is known to hold any of the prompt, its home rank counts as holding HOME_CREDIT of it.
"""

from collections.abc import Sequence

import msgspec

STREAM_TOKENS = 32
"""What a running stream weighs, in tokens of prefill: it makes each step of its rank a little longer."""

HOME_CREDIT = 0.5
"""Share of an unknown prompt that its home rank counts as holding."""


class DataParallelRankLoad(msgspec.Struct, kw_only=True, gc=False):
    """What is under way on one data-parallel rank of a worker."""

    tokens_queued: int = 0
    """Uncached tokens of prompts that have not brought a first token."""
    streams: int = 0


def best_rank(
    loads: Sequence[DataParallelRankLoad], held_tokens: Sequence[int], prompt_tokens: int, home: int
) -> int:
    """Return the number of the rank with the least cost.

    `loads` and `held_tokens` (cached tokens of the prompt) have one entry for each rank. `home` is any number that
    is the same for the same prompt in every gateway; modulo the ranks it is the prompt's home rank.
    """
    home %= len(loads)
    if not any(held_tokens):
        held_tokens = [int(prompt_tokens * HOME_CREDIT) if rank == home else 0 for rank in range(len(loads))]

    def cost(rank: int) -> tuple[int, bool]:
        load = loads[rank]
        uncached = prompt_tokens - held_tokens[rank]
        return load.tokens_queued + load.streams * STREAM_TOKENS + uncached, rank != home

    return min(range(len(loads)), key=cost)
