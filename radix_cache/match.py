"""PrefixMatch: how many leading blocks of one prompt each worker holds."""

from collections.abc import Iterable, Mapping
from typing import NewType, Protocol

import msgspec

from radix_cache.tiers import Tier, TierBlocks, all_on_gpu

WorkerId = NewType("WorkerId", str)
"""Names one serving process, as in the settings (`workers[].id`)."""


class PrefixMatch(Protocol):
    """Leading blocks by worker; who holds none is absent. Ask before the next await: it may read a tree."""

    @property
    def confirmed(self) -> Mapping[WorkerId, int]:
        """What workers are known to hold."""
        ...

    @property
    def pending(self) -> Mapping[WorkerId, int]:
        """A request that brings them is on its way there: they will be held by the time another could use them."""
        ...

    def held(self, worker: WorkerId) -> int:
        """Leading blocks that `worker` is known to hold: of one worker, cheaper than `confirmed`."""
        ...

    def blocks(self, worker: WorkerId) -> int:
        """Leading blocks that `worker` holds or is about to hold."""
        ...

    def tiers(self, worker: WorkerId) -> TierBlocks:
        """The same by where they lie; what is about to be held will lie on the GPU."""
        ...


class KnownMatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PrefixMatch that was found out in full. `slower`: of workers that do not have all of it on the GPU."""

    confirmed: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)
    pending: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)
    slower: Mapping[WorkerId, TierBlocks] = msgspec.field(default_factory=dict)

    def held(self, worker: WorkerId) -> int:
        return self.confirmed.get(worker, 0)

    def blocks(self, worker: WorkerId) -> int:
        return max(self.confirmed.get(worker, 0), self.pending.get(worker, 0))

    def tiers(self, worker: WorkerId) -> TierBlocks:
        held = self.confirmed.get(worker, 0)
        known = self.slower.get(worker) or all_on_gpu(held)
        return known.raised(Tier.GPU, self.pending.get(worker, 0))


class LargestMatch:
    """See PrefixMatch: of several, whichever knows of more."""

    __slots__ = ("_matches",)

    def __init__(self, *matches: PrefixMatch) -> None:
        self._matches = matches

    @property
    def confirmed(self) -> dict[WorkerId, int]:
        return _largest(match.confirmed.items() for match in self._matches)

    @property
    def pending(self) -> dict[WorkerId, int]:
        return _largest(match.pending.items() for match in self._matches)

    def held(self, worker: WorkerId) -> int:
        return max(match.held(worker) for match in self._matches)

    def blocks(self, worker: WorkerId) -> int:
        return max(match.blocks(worker) for match in self._matches)

    def tiers(self, worker: WorkerId) -> TierBlocks:
        return TierBlocks(*map(max, zip(*(match.tiers(worker) for match in self._matches), strict=True)))


def _largest(matches: Iterable[Iterable[tuple[WorkerId, int]]]) -> dict[WorkerId, int]:
    largest: dict[WorkerId, int] = {}
    for match in matches:
        for worker, blocks in match:
            if blocks > largest.get(worker, 0):
                largest[worker] = blocks
    return largest
