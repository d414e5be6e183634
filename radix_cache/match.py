"""PrefixMatch: how many leading blocks of one prompt each worker holds."""

from collections.abc import Mapping
from typing import NewType, Protocol

import msgspec

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

    def blocks(self, worker: WorkerId) -> int:
        """Leading blocks that `worker` holds or is about to hold."""
        ...


class KnownMatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PrefixMatch that was found out in full."""

    confirmed: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)
    pending: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)

    def blocks(self, worker: WorkerId) -> int:
        return max(self.confirmed.get(worker, 0), self.pending.get(worker, 0))
