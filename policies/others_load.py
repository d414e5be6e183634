"""The work that other gateways have sent to a worker: an estimate as of now, from late reports and announcements.

Loads are reported now and then, each as of a moment in the past. Dispatches and ends are announced one by one, soon
after they have happened, by the predictions in the prefix index (radix_cache/shared/predictions.py). So are prompts
that are computed: their worker then holds all blocks that they brought.

    report as of T0 + dispatches announced since T0 - ends announced since T0 - prompts computed since T0

    ----------------T0----D1---E0---C1---D2------> now
     in the report  |     announced since

A prompt that brings no whole block is not announced as computed. While no report has its dispatch, a prompt counts
as queued for PATIENCE times the predicted time to its first token at most: so a gateway to which loads are never
reported counts no prompt for long.
"""

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

import msgspec

from policies.latency_model import predicted_ttft_ms
from workers.worker import Speed

PATIENCE = 2.0
"""Multiple of the predicted time to the first token after which a prompt counts as computed."""


class LoadTotals(msgspec.Struct, frozen=True, gc=False):
    """The work of one worker, summed over the requests of several gateways."""

    tokens_queued: int
    """Uncached prompt tokens sent and not yet followed by a first output token."""
    streams: int
    """Requests under way."""
    kv_tokens: int
    """Prompt tokens and expected output tokens of these requests."""

    def plus(self, other: "LoadTotals", factor: int = 1) -> "LoadTotals":
        """Return the sum with another load, taken `factor` times."""
        return LoadTotals(
            self.tokens_queued + factor * other.tokens_queued,
            self.streams + factor * other.streams,
            self.kv_tokens + factor * other.kv_tokens,
        )


NO_TOTALS = LoadTotals(0, 0, 0)

RequestKey = TypeVar("RequestKey", bound=Hashable)


class AnnouncedRequest(msgspec.Struct, gc=False):
    """A request that another gateway has sent. Times are seconds on one clock."""

    uncached_tokens: int
    """Tokens of its prompt that its worker had to compute."""
    tokens_queued: int
    """The same; 0 once they must have been computed."""
    kv_tokens: int
    sent_at: float
    computed_at: float | None = None
    """When its prompt was computed, as announced; None before."""


class OthersLoad(Generic[RequestKey]):
    """The work of the other gateways on one worker; requests are known by a key. Times are seconds on one clock."""

    __slots__ = (
        "_as_of",
        "_before",
        "_computed",
        "_due",
        "_ended",
        "_kv",
        "_reported",
        "_since",
        "_streams",
        "_tokens",
    )

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop everything that was reported and announced."""
        self._reported = NO_TOTALS
        self._as_of = float("-inf")
        self._since: dict[RequestKey, AnnouncedRequest] = {}
        """Dispatches under way that the report does not have, in the order in which they were announced."""
        self._before: dict[RequestKey, AnnouncedRequest] = {}
        """The dispatches under way that the report has."""
        self._ended: deque[tuple[float, int]] = deque()
        """When dispatches of the report have ended since, and their KV tokens."""
        self._computed: list[tuple[float, int]] = []
        """When prompts of the report were computed since, and their uncached tokens: a heap."""
        self._due: list[tuple[float, float, RequestKey]] = []
        """When each prompt of `_since` must have been computed, and when it was sent: a heap."""
        self._tokens = self._streams = self._kv = 0
        """What is to be added to the report."""

    @property
    def as_of(self) -> float:
        """The moment of the last report."""
        return self._as_of

    @property
    def totals(self) -> LoadTotals:
        """The estimate as of the last change."""
        reported = self._reported
        if not (self._tokens or self._streams or self._kv):
            return reported
        return LoadTotals(
            max(0, reported.tokens_queued + self._tokens),
            max(0, reported.streams + self._streams),
            max(0, reported.kv_tokens + self._kv),
        )

    def report(self, totals: LoadTotals, as_of: float) -> None:
        """Take over a report: it has all that happened up to `as_of`."""
        self._reported, self._as_of = totals, as_of
        since, ended = self._since, self._ended
        while since:
            key, dispatch = next(iter(since.items()))
            if dispatch.sent_at > as_of:
                break
            del since[key]
            self._before[key] = dispatch
            self._take_off(dispatch)
            if dispatch.computed_at is not None:
                self._count_computed(dispatch, dispatch.computed_at)
        while self._computed and self._computed[0][0] <= as_of:
            self._tokens += heappop(self._computed)[1]
        while ended and ended[0][0] <= as_of:
            self._streams += 1
            self._kv += ended.popleft()[1]
        if not since:
            self._due.clear()

    def dispatched(
        self, key: RequestKey, *, uncached_tokens: int, kv_tokens: int, sent_at: float, ready_at: float
    ) -> None:
        """Count an announced dispatch; `ready_at`: when its prompt must have been computed."""
        dispatch = AnnouncedRequest(uncached_tokens, uncached_tokens, kv_tokens, sent_at)
        if sent_at <= self._as_of:
            self._before[key] = dispatch
            return
        self._since[key] = dispatch
        heappush(self._due, (ready_at, sent_at, key))
        self._tokens += uncached_tokens
        self._streams += 1
        self._kv += kv_tokens

    def ended(self, key: RequestKey, at: float) -> None:
        """Take off a request that has ended, as announced; one that was never announced has no effect."""
        dispatch = self._since.pop(key, None)
        if dispatch is not None:
            self._take_off(dispatch)
            return
        reported = self._before.pop(key, None)
        if reported is not None and at > self._as_of:
            self._ended.append((at, reported.kv_tokens))
            self._streams -= 1
            self._kv -= reported.kv_tokens

    def computed(self, key: RequestKey, at: float) -> None:
        """Take the prompt of a request off the queue: it is computed, as announced. Twice has no effect."""
        dispatch = self._since.get(key)
        if dispatch is not None:
            self._tokens -= dispatch.tokens_queued
            dispatch.tokens_queued = 0
        else:
            dispatch = self._before.get(key)
        if dispatch is None or dispatch.computed_at is not None:
            return
        dispatch.computed_at = at
        if key in self._before:
            self._count_computed(dispatch, at)

    def take_off_computed(self, now: float) -> None:
        """Take the prompts off the queue that must have been computed by now."""
        due = self._due
        while due and due[0][0] <= now:
            _, sent_at, key = heappop(due)
            dispatch = self._since.get(key)
            if dispatch is not None and dispatch.sent_at == sent_at:
                self._tokens -= dispatch.tokens_queued
                dispatch.tokens_queued = 0

    def _count_computed(self, dispatch: AnnouncedRequest, at: float) -> None:
        """Take the prompt of a dispatch off a report that has both, unless the report is of a later moment."""
        if at > self._as_of:
            heappush(self._computed, (at, dispatch.uncached_tokens))
            self._tokens -= dispatch.uncached_tokens

    def _take_off(self, dispatch: AnnouncedRequest) -> None:
        self._tokens -= dispatch.tokens_queued
        self._streams -= 1
        self._kv -= dispatch.kv_tokens


def must_be_computed_at(sent_at: float, tokens: int, speed: Speed) -> float:
    """Return when a prompt must have been computed, with `tokens` uncached tokens ahead of it and of its own."""
    return sent_at + PATIENCE * predicted_ttft_ms(speed, tokens) / 1000
