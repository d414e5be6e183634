"""PrefixIndex: the promise of whoever knows which worker holds which prefix.

Matching is synchronous, from memory, and never raises: routing waits for nothing. Changes are fire and
forget: they return at once, are applied soon (at once in one process), and are dropped rather than queued
without bound. What `match` says may be stale; it steers a request and never authorises the reuse of KV.

A path goes through two states on a worker:

    record (at dispatch)              confirm (first token)
    ---------> pending, by its writer ----------> confirmed, until evicted, shortened or forgotten
                  |  withdraw (error, client left) or `predicted_seconds` later
                  v
                gone; nobody else's prediction is touched

Every implementation passes tests/conformance/test_prefix_index.py.
"""

from dataclasses import dataclass
from typing import Protocol

from radix_cache.blocks import Hashes
from radix_cache.match import PrefixMatch, WorkerId
from radix_cache.namespace import Namespace
from radix_cache.tiers import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """Size of an index: nodes and blocks of confirmed paths, predictions under way."""

    nodes: int
    blocks: int
    predictions: int


class PrefixIndex(Protocol):
    def match(self, namespace: Namespace, hashes: Hashes) -> PrefixMatch:
        """Leading blocks of the path by worker, confirmed and pending."""
        ...

    def record(self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str) -> None:
        """The request `writer` is bringing this path to `worker`. One prediction per writer and worker."""
        ...

    def withdraw(self, worker: WorkerId, writer: str) -> None:
        """The writer's prediction did not come true. Withdrawing what is not there does nothing."""
        ...

    def confirm(self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str) -> None:
        """`worker` holds this path now; the writer's prediction, if any, is done."""
        ...

    def report(
        self, namespace: Namespace, hashes: Hashes, worker: WorkerId, writer: str, blocks: int
    ) -> None:
        """The worker says that it held the first `blocks` of the path when the writer's request came.

        Call it after `confirm` and before `withdraw`. If less was held than had been confirmed at `record`, the
        rest had gone, with all that continued it; the path itself is there again. What may have been confirmed
        anew in between is left alone.
        """
        ...

    def hold(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        writer: str = "",
        tier: Tier = Tier.GPU,
    ) -> None:
        """`worker` itself says that it holds this path, in this tier or those before it."""
        ...

    def shorten(
        self,
        namespace: Namespace,
        hashes: Hashes,
        worker: WorkerId,
        blocks: int,
        tier: Tier = Tier.DISK,
    ) -> None:
        """`worker` holds at most the first `blocks` of the path and nothing beyond it, in this tier and those
        before it: what is said of the GPU says nothing of what lies in host memory."""
        ...

    def bound(self, worker: WorkerId, blocks_max: int) -> None:
        """`worker` has room for so many blocks: what it used least recently is taken from it beyond that."""
        ...

    def enrol(self, worker: WorkerId, instance: str) -> None:
        """`worker` serves, as this instance (empty: it does not say). Another one than before holds nothing."""
        ...

    def forget(self, worker: WorkerId) -> None:
        """`worker` holds nothing: it cleared its cache, or left. One step."""
        ...

    def stats(self) -> IndexStats:
        """How big it is now."""
        ...
