"""Prefix matches: how many leading blocks of one prompt each worker holds."""

from collections.abc import Iterable, Mapping
from typing import NewType, Protocol

import msgspec

from radix_cache.tiers import Tier, TierBlocks, all_on_gpu

WorkerId = NewType("WorkerId", str)
"""The id of one worker, as in the settings (`workers[].id`)."""


class PrefixMatch(Protocol):
    """How many leading blocks of one prompt each worker holds; a worker that holds none is absent.

    Read it before the next await: an implementation may read the live tree.
    """

    @property
    def confirmed(self) -> Mapping[WorkerId, int]:
        """Leading blocks that each worker is known to hold."""
        ...

    @property
    def pending(self) -> Mapping[WorkerId, int]:
        """Leading blocks that requests under way bring to each worker.

        The worker will hold them by the time another request could use them.
        """
        ...

    def held(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` is known to hold; cheaper than `confirmed`."""
        ...

    def blocks(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` holds or is about to hold."""
        ...

    def tiers(self, worker: WorkerId) -> TierBlocks:
        """Return the blocks of `blocks` by tier; pending blocks count as on the GPU."""
        ...


class KnownMatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PrefixMatch with the counts of all workers computed in advance."""

    confirmed: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)
    pending: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)
    slower: Mapping[WorkerId, TierBlocks] = msgspec.field(default_factory=dict)
    """The blocks by tier of workers that do not have all of theirs on the GPU."""

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


class LargestMatch:
    """A PrefixMatch that combines several: for each worker the largest count."""

    __slots__ = ("_matches",)

    def __init__(self, *matches: PrefixMatch) -> None:
        self._matches = matches

    @property
    def confirmed(self) -> dict[WorkerId, int]:
        """Leading blocks that each worker is known to hold."""
        return _largest(match.confirmed.items() for match in self._matches)

    @property
    def pending(self) -> dict[WorkerId, int]:
        """Leading blocks that requests under way bring to each worker."""
        return _largest(match.pending.items() for match in self._matches)

    def held(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` is known to hold."""
        return max(match.held(worker) for match in self._matches)

    def blocks(self, worker: WorkerId) -> int:
        """Return the leading blocks that `worker` holds or is about to hold."""
        return max(match.blocks(worker) for match in self._matches)

    def tiers(self, worker: WorkerId) -> TierBlocks:
        """Return the leading blocks that `worker` holds or is about to hold, by tier."""
        return TierBlocks(*map(max, zip(*(match.tiers(worker) for match in self._matches), strict=True)))


def _largest(matches: Iterable[Iterable[tuple[WorkerId, int]]]) -> dict[WorkerId, int]:
    largest: dict[WorkerId, int] = {}
    for match in matches:
        for worker, blocks in match:
            if blocks > largest.get(worker, 0):
                largest[worker] = blocks
    return largest
