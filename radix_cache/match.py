"""PrefixMatch: how many leading blocks of one prompt each worker holds."""

from collections.abc import Mapping
from typing import NewType

import msgspec

WorkerId = NewType("WorkerId", str)
"""Names one serving process, as in the settings (`workers[].id`)."""


class PrefixMatch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Leading blocks by worker; a worker that holds none is absent.

    `confirmed`: the worker is known to hold them. `pending`: a request that brings them is on its way to
    that worker, so they will be there by the time another request could use them.
    """

    confirmed: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)
    pending: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)

    def blocks(self, worker: WorkerId) -> int:
        """Leading blocks that `worker` holds or is about to hold."""
        return max(self.confirmed.get(worker, 0), self.pending.get(worker, 0))


NO_MATCH = PrefixMatch()
