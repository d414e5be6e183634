"""PrefixIndex: the interface of an index of which worker holds which prefix.

Matching reads memory, synchronously, and never raises, so routing never waits for it. Changes are fire-and-forget:
they return at once, are applied soon (immediately in one process), and are dropped rather than queued without
bound. The result of `match` may be stale; it guides routing and never authorises the reuse of KV cache.

A path (the block hashes of a prompt from its beginning) has two states on a worker:

    record (at dispatch)        confirm (first token)        withdraw (the request has ended, its client left)
    ---------> pending: the request counts -------------------------> the request counts no more
                                ----------> confirmed, until evicted, shortened or forgotten

A request counts from its dispatch to its end, for `predicted_seconds` at most. Meanwhile its blocks are on their
way to the worker or in use there, and the request counts among those that share a prefix (PrefixMatch.shared).

Every implementation passes tests/conformance/test_prefix_index.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from radix_cache.blocks import Hashes
from radix_cache.match import PrefixMatch, WorkerId
from radix_cache.namespace import Namespace
from radix_cache.tiers import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """The size of an index."""

    nodes: int
    """Nodes of confirmed paths."""
    blocks: int
    """Blocks of confirmed paths."""
    predictions: int
    """Predictions of requests under way."""


class PrefixIndex(Protocol):
    """An index of which worker holds which leading blocks of which prompt."""

    def match(self, namespace: Namespace, hashes: Hashes) -> PrefixMatch:
        """Return how many leading blocks of the path each worker holds, confirmed and pending."""
        ...

    def record(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        writer: str,
        match: PrefixMatch | None = None,
    ) -> None:
        """Count the request `writer`, once per worker: it brings this path to `worker`, or uses it there.

        `match` is this index's match of the path, if the caller has it, so that the path is not matched again.
        """
        ...

    def withdraw(self, worker: WorkerId, writer: str) -> None:
        """Stop counting the request `writer` at `worker`, since it has ended. Does nothing if it is not counted."""
        ...

    def wait(self, namespace: Namespace, hashes: Hashes, writer: str) -> None:
        """Count the request `writer`, which waits for a worker, among the requests that share its prefix."""
        ...

    def leave(self, writer: str) -> None:
        """Stop counting the request `writer` among those that wait. Does nothing if it is not counted."""
        ...

    def waiting(self, model: str) -> int:
        """Return how many requests for the model wait, as counted by `wait` and `leave`."""
        ...

    def repeated_blocks(self, workers: Iterable[WorkerId]) -> Mapping[WorkerId, int]:
        """Return, by worker, how many blocks its requests under way have in common, counted once per repetition.

        KV memory stores such a block only once. Workers without repeated blocks are left out.
        """
        ...

    def confirm(self, namespace: Namespace, hashes: Hashes, worker: WorkerId) -> None:
        """Record that `worker` holds this path now."""
        ...

    def report(
        self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str, blocks: int
    ) -> None:
        """Record that the worker reported `blocks` leading blocks of the path as cached for the writer's request.

        Call this after `confirm` and before `withdraw`. If `blocks` is less than was confirmed at `record`, the
        worker had lost the rest and everything below it; by now it has computed the path again. Paths that may
        have been confirmed again in between are left alone.
        """
        ...

    def hold(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        tier: Tier = Tier.GPU,
    ) -> None:
        """Record that `worker` itself published that it holds this path, in this tier or a faster one."""
        ...

    def shorten(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        blocks: int,
        tier: Tier = Tier.DISK,
    ) -> None:
        """Record that `worker` holds at most the first `blocks` of the path and nothing beyond them.

        This applies to the tier and faster ones: a statement about the GPU does not apply to host memory.
        """
        ...

    def set_capacity(self, worker: WorkerId, blocks_max: int) -> None:
        """Set the capacity of `worker` in blocks; its least recently used blocks beyond that are dropped."""
        ...

    def enrol(self, worker: WorkerId, instance: str) -> None:
        """Record the instance id of `worker` (empty: unknown). A worker with a new instance id holds nothing."""
        ...

    def forget(self, worker: WorkerId) -> None:
        """Record in one step that `worker` holds nothing, since it cleared its cache or left the fleet.

        Its capacity has to be set again.
        """
        ...

    def stats(self) -> IndexStats:
        """Return the current size of the index."""
        ...
