"""PrefixIndex: the interface of an index of which worker holds which prefix.

Matching is synchronous, from memory, and never raises: routing waits for nothing. Changes are fire and
forget: they return at once, are applied soon (at once in one process), and are dropped rather than queued
without bound. The result of `match` may be stale; it guides routing and never authorises the reuse of KV cache.

A path (the block hashes of a prompt, from its beginning) goes through two states on a worker:

    record (at dispatch)        confirm (first token)        withdraw (the request has ended, its client left)
    ---------> pending: the request counts -------------------------> the request counts no more
                                ----------> confirmed, until evicted, shortened or forgotten

A request counts from its dispatch to its end, `predicted_seconds` at most: meanwhile its blocks are on their way to
the worker or in use there, and it is one of those that share a prefix (PrefixMatch.shared).

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
    """Requests under way that are counted."""


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
        """Count the request `writer`, which brings this path to `worker` or uses it there, once for each worker.

        `match` is this index's match of the path, if the caller has it, so that the path is not matched again.
        """
        ...

    def withdraw(self, worker: WorkerId, writer: str) -> None:
        """Take the request `writer` off the count at `worker`: it has ended; if it is not counted, do nothing."""
        ...

    def wait(self, namespace: Namespace, hashes: Hashes, writer: str) -> None:
        """Count the request `writer`, which waits for a worker: it is one of those that share its prefix."""
        ...

    def leave(self, writer: str) -> None:
        """Take the request `writer` off the count of those that wait; if it is not counted, do nothing."""
        ...

    def waiting(self, model: str) -> int:
        """Return how many requests for the model wait, as far as `wait` has said."""
        ...

    def repeated_blocks(self, workers: Iterable[WorkerId]) -> Mapping[WorkerId, int]:
        """Return how many blocks the requests under way on each of the workers repeat.

        KV memory has each of these blocks once. Workers that repeat none are left out.
        """
        ...

    def confirm(self, namespace: Namespace, hashes: Hashes, worker: WorkerId) -> None:
        """Note that `worker` holds this path now."""
        ...

    def report(
        self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str, blocks: int
    ) -> None:
        """Note that the worker reported `blocks` leading blocks of the path as cached for the writer's request.

        Call it after `confirm` and before `withdraw`. If that is less than what was confirmed at `record`, the
        worker had lost the rest, with everything that continued it; the path itself is there again. Paths that may
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
        """Note that `worker` itself published that it holds this path, in this tier or a nearer one."""
        ...

    def shorten(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        blocks: int,
        tier: Tier = Tier.DISK,
    ) -> None:
        """Note that `worker` holds at most the first `blocks` of the path and nothing beyond them.

        This holds for the tier and nearer ones: a statement about the GPU says nothing about host memory.
        """
        ...

    def set_capacity(self, worker: WorkerId, blocks_max: int) -> None:
        """Set how many blocks `worker` has room for; beyond that its least recently used blocks are dropped."""
        ...

    def enrol(self, worker: WorkerId, instance: str) -> None:
        """Note that `worker` serves as this instance (empty: unknown). A new instance of a worker holds nothing."""
        ...

    def forget(self, worker: WorkerId) -> None:
        """Note in one step that `worker` holds nothing: it cleared its cache, or left."""
        ...

    def stats(self) -> IndexStats:
        """Return the current size of the index."""
        ...
