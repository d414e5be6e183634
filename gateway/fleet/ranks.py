"""The data-parallel ranks of workers: the blocks and the work under way of each, by this gateway's own records.

    choose              a request goes to a rank; its path counts as held there from now on, so that the next
                        request with the same prefix follows it
    update_from_feed    a rank's load feed reports its load: what this gateway did not send is added to what it sent
    stored, removed, cleared    KV events of workers that this gateway follows
    forget              the worker's caches are lost, or it has left the fleet

The prefix index counts a worker as one; the record here is a hint beside it, each gateway's own, and bounded:
the least recently used blocks are dropped first, the ends of paths before their beginnings.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet.external_load import ExternalLoad
from policies.routing.data_parallel_rank import DataParallelRankLoad, best_rank
from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from workers.load_reports.engine_loads import EngineLoad
from workers.load_reports.load_subscriber import SILENT_SECONDS

BLOCKS_MAX = 131_072
"""Blocks that are kept of one worker: about 15 MB."""

RANK_EXTERNAL_WINDOW_SECONDS = 0.25
"""For this long after a request has ended here, its rank may still report it."""


class RankShare:
    """One request's share of the load of a data-parallel rank. Ending it twice has no effect."""

    __slots__ = ("_load", "_tokens", "number")

    def __init__(self, number: int, load: DataParallelRankLoad, uncached_tokens: int) -> None:
        self.number = number
        """The number of the rank."""
        self._load: DataParallelRankLoad | None = load
        self._tokens = uncached_tokens
        load.tokens_queued += uncached_tokens
        load.streams += 1

    def note_first_token(self) -> None:
        """Take the request's prompt off the queue: its prefill is done."""
        if self._load is not None:
            self._load.tokens_queued -= self._tokens
            self._tokens = 0

    def end(self) -> None:
        """Take the request off the rank's load."""
        self.note_first_token()
        if self._load is not None:
            self._load.streams -= 1
            self._load = None


class _RankedWorker:
    """The ranks of one worker: their loads, and their blocks; the ranks that hold a block are bits of a number."""

    def __init__(self, ranks: int) -> None:
        self.loads = [DataParallelRankLoad() for _ in range(ranks)]
        self.external = [ExternalLoad() for _ in range(ranks)]
        self.read_at = [-math.inf] * ranks
        self.holders: OrderedDict[int, int] = OrderedDict()

    def all_loads(self, now: float) -> list[DataParallelRankLoad]:
        """Return each rank's load: what this gateway sent, and what a rank has beyond that by its feed."""
        return [
            load
            if now - read_at >= SILENT_SECONDS
            else DataParallelRankLoad(
                tokens_queued=load.tokens_queued + external.load.tokens_queued,
                streams=load.streams + external.load.streams,
            )
            for load, external, read_at in zip(self.loads, self.external, self.read_at, strict=True)
        ]

    def matched(self, hashes: Hashes) -> list[int]:
        """Return how many leading blocks of the path each rank holds."""
        counts, left = [len(hashes)] * len(self.loads), (1 << len(self.loads)) - 1
        for depth, block in enumerate(hashes):
            lost = left & ~self.holders.get(block, 0)
            if lost:
                counts = [depth if lost >> rank & 1 else count for rank, count in enumerate(counts)]
                left &= ~lost
                if not left:
                    break
        return counts

    def touch(self, hashes: Hashes, rank: int) -> None:
        """Note that the rank holds this path, or is about to."""
        for block in reversed(hashes):
            self.holders[block] = self.holders.get(block, 0) | 1 << rank
            self.holders.move_to_end(block)
        while len(self.holders) > BLOCKS_MAX:
            self.holders.popitem(last=False)

    def add(self, hashes: Hashes, rank: int) -> None:
        """Note that the rank stored this path; what comes before a block that it holds is known already."""
        at = len(hashes)
        while at and not self.holders.get(hashes[at - 1], 0) >> rank & 1:
            at -= 1
        self.touch(hashes[at:], rank)

    def drop(self, hashes: Iterable[int], rank: int) -> None:
        """Note that the rank does not hold these blocks."""
        for block in hashes:
            holders = self.holders.get(block, 0) & ~(1 << rank)
            if holders:
                self.holders[block] = holders
            else:
                self.holders.pop(block, None)


class Ranks:
    """The data-parallel ranks of all workers that have several. `clock`: seconds, never backwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._workers: dict[WorkerId, _RankedWorker] = {}

    def choose(
        self, worker: WorkerId, ranks: int, prompt: PromptBlocks, session: int | None = None
    ) -> RankShare | None:
        """Choose the rank that computes a prompt, and count the request there; None for a worker with one rank.

        `session`: equal for the turns of one conversation.
        """
        if ranks < 2:
            self._workers.pop(worker, None)
            return None
        known = self._workers.get(worker)
        if known is None or len(known.loads) != ranks:
            known = self._workers[worker] = _RankedWorker(ranks)
        hashes = prompt.hashes
        held = [prompt.matched_tokens(blocks) for blocks in known.matched(hashes)]
        home = session if session is not None else hashes[0] if hashes else prompt.prompt_tokens
        number = best_rank(known.all_loads(self._clock()), held, prompt.prompt_tokens, home)
        known.touch(hashes, number)
        return RankShare(number, known.loads[number], prompt.prompt_tokens - held[number])

    def loads(self, worker: WorkerId) -> list[DataParallelRankLoad]:
        """Return the load of each rank, as far as it is known; nothing for a worker with one rank."""
        at = self._workers.get(worker)
        return at.all_loads(self._clock()) if at is not None else []

    def update_from_feed(self, worker: WorkerId, rank: int, load: EngineLoad, ranks: int) -> None:
        """Take over the whole load that a rank's feed reports; the worker has `ranks` of them."""
        if ranks > 1 and worker not in self._workers:
            self._workers[worker] = _RankedWorker(ranks)
        if (at := self._at(worker, rank)) is not None:
            own, now = at.loads[rank], self._clock()
            beyond = load.excess_over(own.streams, own.tokens_queued, 0)
            at.external[rank].update(beyond, now, RANK_EXTERNAL_WINDOW_SECONDS)
            at.read_at[rank] = now

    def stored(self, worker: WorkerId, rank: int, hashes: Hashes, ranks: int) -> None:
        """Take over a KV event: the rank holds this path; the worker has `ranks` of them."""
        if ranks > 1 and worker not in self._workers:
            self._workers[worker] = _RankedWorker(ranks)
        if (at := self._at(worker, rank)) is not None:
            at.add(hashes, rank)

    def removed(self, worker: WorkerId, rank: int, hashes: Hashes) -> None:
        """Take over a KV event: the rank does not hold these blocks any more."""
        if (at := self._at(worker, rank)) is not None:
            at.drop(hashes, rank)

    def cleared(self, worker: WorkerId, rank: int) -> None:
        """Take over a KV event: the rank holds nothing."""
        if (at := self._at(worker, rank)) is not None:
            at.drop(list(at.holders), rank)

    def forget(self, worker: WorkerId) -> None:
        """Forget a worker whose caches are lost, or which has left the fleet."""
        self._workers.pop(worker, None)

    def _at(self, worker: WorkerId, rank: int) -> _RankedWorker | None:
        at = self._workers.get(worker)
        return at if at is not None and rank < len(at.loads) else None
