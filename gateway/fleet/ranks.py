"""The data-parallel ranks of workers: what each holds, as far as this gateway knows, and what is under way there.

    entered     its path is the rank's from now on, so that the next one with the same prefix follows it
    heard       a rank's load feed says how busy it is: what is not from here comes on top of what is
    events      of workers that this gateway follows: what a rank stored, and what it evicted
    emptied     the rank holds nothing, or the worker is gone

The index counts a worker as one; this is a hint beside it, each gateway's own, and bounded: what was touched least
recently is forgotten first, the ends of paths before their beginnings.
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
from workers.load_reports.load_feed import SILENT_SECONDS

BLOCKS_MAX = 131_072
"""Of one worker: about 15 MB."""
EXTERNAL_SECONDS = 0.25
"""What has ended here is counted there until a reading or two later."""


class RankPlace:
    """One request on one rank. Leaving twice is leaving once."""

    __slots__ = ("_load", "_tokens", "number")

    def __init__(self, number: int, load: DataParallelRankLoad, uncached_tokens: int) -> None:
        self.number = number
        self._load: DataParallelRankLoad | None = load
        self._tokens = uncached_tokens
        load.tokens_queued += uncached_tokens
        load.streams += 1

    def first_token(self) -> None:
        """Its prompt is computed."""
        if self._load is not None:
            self._load.tokens_queued -= self._tokens
            self._tokens = 0

    def leave(self) -> None:
        self.first_token()
        if self._load is not None:
            self._load.streams -= 1
            self._load = None


class _Worker:
    """Its ranks. A block's holders are the bits of a number."""

    def __init__(self, ranks: int) -> None:
        self.loads = [DataParallelRankLoad() for _ in range(ranks)]
        self.external = [ExternalLoad() for _ in range(ranks)]
        self.heard_at = [-math.inf] * ranks
        self.holders: OrderedDict[int, int] = OrderedDict()

    def all_loads(self, now: float) -> list[DataParallelRankLoad]:
        """Of everyone, as far as ranks tell."""
        return [
            load
            if now - heard_at >= SILENT_SECONDS
            else DataParallelRankLoad(
                tokens_queued=load.tokens_queued + external.load.tokens_queued,
                streams=load.streams + external.load.streams,
            )
            for load, external, heard_at in zip(self.loads, self.external, self.heard_at, strict=True)
        ]

    def matched(self, hashes: Hashes) -> list[int]:
        """Leading blocks by rank."""
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
        """The rank has this path, or is about to."""
        for block in reversed(hashes):
            self.holders[block] = self.holders.get(block, 0) | 1 << rank
            self.holders.move_to_end(block)
        while len(self.holders) > BLOCKS_MAX:
            self.holders.popitem(last=False)

    def add(self, hashes: Hashes, rank: int) -> None:
        """The rank says so; whatever comes before a block that it is known to have is known, too."""
        at = len(hashes)
        while at and not self.holders.get(hashes[at - 1], 0) >> rank & 1:
            at -= 1
        self.touch(hashes[at:], rank)

    def drop(self, hashes: Iterable[int], rank: int) -> None:
        for block in hashes:
            holders = self.holders.get(block, 0) & ~(1 << rank)
            if holders:
                self.holders[block] = holders
            else:
                self.holders.pop(block, None)


class Ranks:
    """Of all workers that have several. `clock`: seconds, never backwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._workers: dict[WorkerId, _Worker] = {}

    def enter(
        self, worker: WorkerId, ranks: int, prompt: PromptBlocks, session: int | None = None
    ) -> RankPlace | None:
        """The rank that a prompt goes to; None where there is nothing to choose. `session`: equal for the turns of
        one conversation."""
        if ranks < 2:
            self._workers.pop(worker, None)
            return None
        at = self._workers.get(worker)
        if at is None or len(at.loads) != ranks:
            at = self._workers[worker] = _Worker(ranks)
        hashes = prompt.hashes
        held = [prompt.matched_tokens(blocks) for blocks in at.matched(hashes)]
        home = session if session is not None else hashes[0] if hashes else prompt.prompt_tokens
        number = best_rank(at.all_loads(self._clock()), held, prompt.prompt_tokens, home)
        at.touch(hashes, number)
        return RankPlace(number, at.loads[number], prompt.prompt_tokens - held[number])

    def loads(self, worker: WorkerId) -> list[DataParallelRankLoad]:
        """What each of its ranks has, as far as is known; none where it has one."""
        at = self._workers.get(worker)
        return at.all_loads(self._clock()) if at is not None else []

    def heard(self, worker: WorkerId, rank: int, load: EngineLoad, ranks: int) -> None:
        """The rank's load feed says what it has, from whomever; it is one of so many."""
        if ranks > 1 and worker not in self._workers:
            self._workers[worker] = _Worker(ranks)
        if (at := self._at(worker, rank)) is not None:
            own, now = at.loads[rank], self._clock()
            beyond = load.excess_over(own.streams, own.tokens_queued, 0)
            at.external[rank].update(beyond, now, EXTERNAL_SECONDS)
            at.heard_at[rank] = now

    def held(self, worker: WorkerId, rank: int, hashes: Hashes, ranks: int) -> None:
        """The rank itself, one of so many, says that it holds this path."""
        if ranks > 1 and worker not in self._workers:
            self._workers[worker] = _Worker(ranks)
        if (at := self._at(worker, rank)) is not None:
            at.add(hashes, rank)

    def gone(self, worker: WorkerId, rank: int, hashes: Hashes) -> None:
        """It says that it does not hold these any more."""
        if (at := self._at(worker, rank)) is not None:
            at.drop(hashes, rank)

    def emptied(self, worker: WorkerId, rank: int) -> None:
        """It says that it holds nothing."""
        if (at := self._at(worker, rank)) is not None:
            at.drop(list(at.holders), rank)

    def forget(self, worker: WorkerId) -> None:
        """All its caches are lost, or it is no more of the fleet."""
        self._workers.pop(worker, None)

    def _at(self, worker: WorkerId, rank: int) -> _Worker | None:
        at = self._workers.get(worker)
        return at if at is not None and rank < len(at.loads) else None
