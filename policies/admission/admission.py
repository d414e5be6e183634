"""Admission arithmetic: when a worker has room, when a waiting room is full, how long to wait, when to return."""

from collections import deque
from typing import Literal

import msgspec

DRAIN_SECONDS = 30.0
"""How far back the drain rate looks."""

TURNS_REMEMBERED = 512
HOLD_MS = 10.0
PASSED_MAX = 8
"""Of those who would rather wait for their worker: so many are looked at for one who goes to another."""
PASSED_OF_FLOW_MAX = 4
"""Of these, of one tenant and service class."""

LOOK_TOKENS, LOOK_SHARE = 1024, 1 / 16
"""Room for so many tokens, or so much of a window, is worth a look at who might use it."""

SHED_SHARE = 0.3


def has_window(tokens_queued: int, uncached_tokens: int, window_tokens: int) -> bool:
    """May this much prefill be sent to a worker that has so much ahead of it already?

    Requests wait in the gateway, where their order is ours, and not in the engine's own queue. An idle worker
    takes anything, also a prompt longer than the window.

    What a worker has computed by now counts until its first token. Not to count it, where KV is not short, gained
    6 % of mean TTFT near saturation (a public trace, 8 workers, three seeds) and cost whoever is flooded by others
    7 % of theirs (four seeds), as more of the flood was in the engines' queues.
    """
    return tokens_queued == 0 or tokens_queued + uncached_tokens <= window_tokens


def worth_a_look(tokens_queued: int, least_tokens: int, window_tokens: int) -> bool:
    """Has a worker room for one of those who wait? `least_tokens`: of their prompts' uncached tokens, the fewest.

    Whoever waits is ranked anew at each look, which costs most of what a request costs: with hundreds that wait
    for a full fleet, a look after every answer is several for each request. More of a prompt may be cached by now
    than when it came, so that it fits where none seems to; a look for that is worth LOOK_TOKENS, not less, or its
    share of a narrow window.
    """
    worth = min(LOOK_TOKENS, int(LOOK_SHARE * window_tokens))
    return has_window(tokens_queued, min(least_tokens, worth), window_tokens)


def worth_going(cost_ms: float, least_ms: float, hold: float | None) -> bool:
    """Is a worker good enough to go there, where the best would cost so little? Else one waits for that one.

    `hold`: how much dearer it may be, as a share of the least; None: any will do. What HOLD_MS would gain is not
    worth a wait.

    Measured by simulated queues (see simulation/turns.py) on a public trace and generated ones: 0 in place of 0.1
    is as good or better everywhere (TTFT of agents -18 %, goodput near saturation +3 %), None costs a sixth of the
    hit ratio. What did not pay, or not enough: to let who came later into the window that somebody waits for (2 %
    of TTFT), to keep long prompts to some of the workers (nothing).
    """
    return hold is None or cost_ms <= least_ms + max(abs(least_ms) * hold, HOLD_MS)


class RoomBounds(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many requests, and uncached prompt tokens, may wait: of all, and of one tenant."""

    requests_max: int
    tokens_max: int
    tenant_requests_max: int | None = None
    tenant_tokens_max: int | None = None


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Who waits: so many, with so many uncached prompt tokens."""

    requests: int = 0
    tokens: int = 0

    def plus(self, requests: int, tokens: int) -> "Waiting":
        return Waiting(self.requests + requests, self.tokens + tokens)


def refused_by(
    bounds: RoomBounds, everybody: Waiting, own: Waiting, tenants: int, tokens: int
) -> Literal["tenant", "everybody"] | None:
    """Who fills the room, that one more of so many tokens has no space? None: it has.

    A tenant with its own bound reached, or with its even share of a full room or more, is told so; others suffer
    for all. `tenants`: how many wait, this one included. A room that is empty takes any prompt.
    """
    if own.requests and _over(own, tokens, bounds.tenant_requests_max, bounds.tenant_tokens_max):
        return "tenant"
    if not everybody.requests or not _over(everybody, tokens, bounds.requests_max, bounds.tokens_max):
        return None
    even = Waiting(max(1, bounds.requests_max // tenants), bounds.tokens_max // tenants)
    by_count = everybody.requests >= bounds.requests_max
    more = own.requests >= even.requests if by_count else own.tokens + tokens > even.tokens
    return "tenant" if more else "everybody"


def _over(waiting: Waiting, tokens: int, requests_max: int | None, tokens_max: int | None) -> bool:
    return (requests_max is not None and waiting.requests >= requests_max) or (
        tokens_max is not None and waiting.tokens + tokens > tokens_max
    )


def patience_seconds(ttft_seconds: float, standing_seconds: float) -> float:
    """How long one of a class that sheds may wait, where somebody has waited without a break for so long.

    A burst may wait as long as its target is; a queue that has stood for longer than that is no burst, and
    everybody in it would miss: then it is a third, so that those who are served are served in time. CoDel's idea
    (Nichols, Jacobson 2012), in the form that needs no rate.
    """
    return ttft_seconds if standing_seconds <= ttft_seconds else SHED_SHARE * ttft_seconds


class DrainRate:
    """Cost units that get their turn in a second, as measured lately."""

    def __init__(self) -> None:
        self._turns: deque[tuple[float, float]] = deque(maxlen=TURNS_REMEMBERED)

    def gave(self, now: float, units: float) -> None:
        """A turn for so much work."""
        self._turns.append((now, units))

    def per_second(self, now: float) -> float:
        """0 where nothing is known."""
        while self._turns and self._turns[0][0] < now - DRAIN_SECONDS:
            self._turns.popleft()
        if len(self._turns) < 2:
            return 0.0
        seconds = now - self._turns[0][0]
        return sum(units for _, units in self._turns) / seconds if seconds > 0 else 0.0


def retry_after_seconds(waiting_units: float, units_per_second: float, longest_seconds: float) -> float:
    """When a refused client should come back: once what waits now has been given its turn.

    Without a measured rate the answer is one second. Never less than a second, never more than the longest
    that anybody is left to wait.
    """
    if units_per_second <= 0:
        return 1.0
    return min(max(waiting_units / units_per_second, 1.0), longest_seconds)
