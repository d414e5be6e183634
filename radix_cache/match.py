"""Prefix matches: how many leading blocks of one prompt each worker holds."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import NewType, Protocol

import msgspec

from radix_cache.in_flight_tree import SharedPart
from radix_cache.tiers import Tier, TierBlocks, all_on_gpu

WorkerId = NewType("WorkerId", str)
"""The id of one worker, as in the settings (`workers[].id`)."""


class PrefixMatch(Protocol):
    """The number of leading blocks of one prompt that each worker holds; workers that hold none are absent.

    Read it before the next await: an implementation may read the live tree.
    """

    @property
    def confirmed(self) -> Mapping[WorkerId, int]:
        """Leading blocks that each worker is known to hold."""
        ...

    @property
    def pending(self) -> Mapping[WorkerId, int]:
        """The leading blocks that requests under way bring to each worker, or use there.

        The worker will hold these blocks by the time another request could use them.
        """
        ...

    def held(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` is known to hold; cheaper than `confirmed`."""
        ...

    def blocks(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` holds or is about to hold."""
        ...

    def tiers(self, worker: WorkerId) -> TierBlocks:
        """Return the blocks that `blocks` counts, by tier; pending blocks count as on the GPU."""
        ...

    @property
    def shared(self) -> Sequence[SharedPart]:
        """The leading parts of the prompt that requests under way share, and how many requests have each part."""
        ...

    def holder_count(self, blocks: int) -> int:
        """Return about how many workers hold or are about to hold `blocks` (1 or more) leading blocks."""
        ...

    def is_held(self, blocks: int) -> bool:
        """Return whether a worker is known to hold this many (1 or more) leading blocks."""
        ...

    def holders(self, count_max: int) -> list[WorkerId]:
        """Return workers that hold or are about to hold some of the prompt, the longest part first.

        If there are more than `count_max`, it returns some with the longest parts, so that the cost does not grow
        with the fleet.
        """
        ...


class KnownMatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PrefixMatch with the counts of all workers computed in advance."""

    confirmed: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)
    pending: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)
    slower: Mapping[WorkerId, TierBlocks] = msgspec.field(default_factory=dict)
    """The blocks by tier, for workers that hold some of them outside the GPU."""
    shared: Sequence[SharedPart] = ()
    """The parts of the prompt that requests under way have, and how many requests have each."""

    def held(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` is known to hold."""
        return self.confirmed.get(worker, 0)

    def blocks(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` holds or is about to hold."""
        return max(self.confirmed.get(worker, 0), self.pending.get(worker, 0))

    def tiers(self, worker: WorkerId) -> TierBlocks:
        """Return the leading blocks that `worker` holds or is about to hold, by tier."""
        held = self.confirmed.get(worker, 0)
        known = self.slower.get(worker) or all_on_gpu(held)
        return known.at_least(Tier.GPU, self.pending.get(worker, 0))

    def holders(self, count_max: int) -> list[WorkerId]:
        """Return the workers with the longest parts of the prompt, the longest first."""
        return nlargest(count_max, {**self.confirmed, **self.pending}, key=self.blocks)

    def holder_count(self, blocks: int) -> int:
        """Return how many workers hold or are about to hold this many leading blocks."""
        return sum(self.blocks(worker) >= blocks for worker in {**self.confirmed, **self.pending})

    def is_held(self, blocks: int) -> bool:
        """Return whether a worker is known to hold this many leading blocks."""
        return max(self.confirmed.values(), default=0) >= blocks


NO_MATCH = KnownMatch()
"""The match of a prompt of which no worker holds anything."""


class LargestMatch:
    """A PrefixMatch that combines several matches: for each worker it has the largest count."""

    __slots__ = ("matches",)

    def __init__(self, *matches: PrefixMatch) -> None:
        self.matches = matches
        """The matches that are combined."""

    @property
    def confirmed(self) -> dict[WorkerId, int]:
        """Leading blocks that each worker is known to hold."""
        return _largest(match.confirmed.items() for match in self.matches)

    @property
    def pending(self) -> dict[WorkerId, int]:
        """Leading blocks that requests under way bring to each worker."""
        return _largest(match.pending.items() for match in self.matches)

    def held(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` is known to hold."""
        return max(match.held(worker) for match in self.matches)

    def blocks(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` holds or is about to hold."""
        return max(match.blocks(worker) for match in self.matches)

    def tiers(self, worker: WorkerId) -> TierBlocks:
        """Return the leading blocks that `worker` holds or is about to hold, by tier."""
        return TierBlocks(*map(max, zip(*(match.tiers(worker) for match in self.matches), strict=True)))

    def holders(self, count_max: int) -> list[WorkerId]:
        """Return workers with the longest parts of the prompt, the longest first."""
        found = {worker for match in self.matches for worker in match.holders(count_max)}
        return nlargest(count_max, found, key=self.blocks)

    @property
    def shared(self) -> Sequence[SharedPart]:
        """The shared parts of the prompt, taken from the match with the most requests."""
        return max(
            (match.shared for match in self.matches), key=lambda parts: parts[0].requests if parts else 0
        )

    def holder_count(self, blocks: int) -> int:
        """Return about how many workers hold or are about to hold this many leading blocks."""
        return max(match.holder_count(blocks) for match in self.matches)

    def is_held(self, blocks: int) -> bool:
        """Return whether a worker is known to hold this many leading blocks."""
        return any(match.is_held(blocks) for match in self.matches)


def _largest(matches: Iterable[Iterable[tuple[WorkerId, int]]]) -> dict[WorkerId, int]:
    largest: dict[WorkerId, int] = {}
    for match in matches:
        for worker, blocks in match:
            if blocks > largest.get(worker, 0):
                largest[worker] = blocks
    return largest
