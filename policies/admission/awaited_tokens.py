"""Awaited tokens: the prompts of requests that wait in the gateway, each at the worker that it waits for.

    arrives --ranked--> no room: waits for its own worker, and counts there in the ranking of others
                                   |    ^
                                   |    +-- ranked again, the one that was ranked longest ago (estimate_ages.py)
                                   +------> its turn, and room at that worker: sent

A ranking that does not count waiting requests prefers a full worker many times: only a window of work is ahead
there. Requests then wait for it beside idle workers, and each of them is ranked again in its turn, in vain. With
waiting requests counted, they are spread as if they were sent at once, and one with a full worker need not be
ranked.

A request has a worker of its own if that holds more of its prompt than all others, by what is worth a wait. Others
take any good worker with room in their turn, so that tenants get their shares. So do all requests where tenants
contend or several classes come (`DispatchWindow.awaits_one`): a request that goes before others that wait does not
have their prompts ahead of it.

Once requests wait for every worker (`AwaitedTokens.counted`) nothing counts: no worker would be idle, so a request
that leaves its prefix only moves waiting work from one queue to another, and has the prefix computed again.

Fleets of agents near saturation, mean TTFT over that without a queue, seven seeds: 1.29, 1.67, 1.05, 0.79, 0.87,
1.22 and 1.09 before; 0.65, 1.14, 1.01, 1.13, 0.83, 0.79 and 0.80 now. Other agents far past saturation, five seeds:
1.26, 0.72, 0.63, 1.12 and 0.74 before; 0.93, 0.89, 0.61, 0.76 and 0.75 now.

To the queue of all gateways a gateway names the request's own worker alone. What waits in one gateway counts once
for each of them, since all get the same traffic: two gateways, the first agents, three seeds: 1.29, 3.17 and 1.21
before; 1.16, 1.17 and 0.67 now. That queue passes over up to 128 requests then (search_bounds.py).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from policies.admission.hold import HOLD_MS
from policies.routing.protocol import Route

Key = TypeVar("Key", bound=Hashable)
"""The key of a request."""
Place = TypeVar("Place", bound=Hashable)
"""The key of a worker."""

NOTHING: Mapping[Any, int] = MappingProxyType({})


def own_worker_route(ranking: Sequence[Route]) -> Route | None:
    """Return the route to the worker that holds more of the prompt than all others; None: none is worth a wait."""
    best = ranking[0]
    elsewhere = max((route.matched_tokens for route in ranking[1:]), default=best.matched_tokens)
    saved_ms = best.ms_per_queued_token * (best.matched_tokens - elsewhere)
    return best if saved_ms > HOLD_MS else None


class AwaitedTokens(Generic[Key, Place]):
    """The requests that wait and their uncached prompt tokens, by the worker that each waits for."""

    def __init__(self) -> None:
        self.tokens: dict[Place, int] = {}
        """By worker that is waited for."""
        self.requests: dict[Place, int] = {}
        """How many wait for each of these workers."""
        self._of: dict[Key, tuple[Place, int, int]] = {}

    def worker_of(self, request: Key) -> Place | None:
        """Return the worker that a request waits for; None if it waits for no certain one."""
        found = self._of.get(request)
        return None if found is None else found[0]

    def counted(self, workers: Iterable[Place]) -> Mapping[Place, int]:
        """Return what counts in the ranking of these workers: nothing while requests wait for each of them."""
        return NOTHING if all(worker in self.tokens for worker in workers) else self.tokens

    def wait(self, request: Key, worker: Place, tokens: int, *, gateways: int = 1) -> None:
        """Let a request with so many uncached tokens wait for this worker, and no other.

        It counts once for each of the `gateways`.
        """
        self.leave(request)
        tokens *= gateways
        self._of[request] = worker, tokens, gateways
        self.tokens[worker] = self.tokens.get(worker, 0) + tokens
        self.requests[worker] = self.requests.get(worker, 0) + gateways

    def leave(self, request: Key) -> Place | None:
        """End a request's wait; return the worker that it waited for. Calling it twice has no effect."""
        worker, tokens, count = self._of.pop(request, (None, 0, 0))
        if worker is not None:
            self.tokens[worker] -= tokens
            self.requests[worker] -= count
            if not self.requests[worker]:
                del self.tokens[worker], self.requests[worker]
        return worker
