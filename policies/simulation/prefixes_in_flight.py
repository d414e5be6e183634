"""The prefixes of the requests that wait in one simulated gateway, or that it counts as under way."""

from array import array
from bisect import bisect_left
from collections.abc import Mapping

from policies.routing.copy_regrets import RememberedRegrets
from policies.routing.protocol import SharedPrefix
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from radix_cache.in_flight_tree import InFlightNode, InFlightTree

WAITING = -1
"""In place of a worker: the request waits for one."""


class PrefixesInFlight:
    """Finds the parts of a prompt that other requests share, and the workers to which they are on their way.

    Requests are known by their number.
    """

    def __init__(self) -> None:
        self.regrets = RememberedRegrets()
        """What this gateway's requests have waited for copies of prefixes."""
        self._tree: InFlightTree[int] = InFlightTree()
        self._waiting: dict[int, InFlightNode[int] | None] = {}
        """The last nodes of the requests that wait here."""
        self._under_way: dict[int, InFlightNode[int] | None] = {}
        """The last nodes of the requests under way."""

    @property
    def requests_waiting(self) -> int:
        """The number of requests that wait in the gateway."""
        return len(self._waiting)

    def is_waiting(self, number: int) -> bool:
        """Return whether the request waits in the gateway."""
        return number in self._waiting

    def wait(self, number: int, request: TraceRequest) -> None:
        """Count a request that waits in the gateway."""
        if number not in self._waiting:
            self._waiting[number] = self._tree.add(_whole_blocks(request), WAITING)

    def stop_waiting(self, number: int) -> None:
        """Drop a request that no longer waits in the gateway."""
        self._tree.remove(self._waiting.pop(number, None), WAITING)

    def bring(self, worker: int, number: int, request: TraceRequest) -> None:
        """Expect that a request brings its prompt's blocks to a worker."""
        self._under_way[number] = self._tree.add(_whole_blocks(request), worker)

    def end(self, worker: int, number: int) -> None:
        """Drop a request that is no longer under way."""
        self._tree.remove(self._under_way.pop(number), worker)

    def repeated_blocks(self, worker: int) -> int:
        """Return the blocks of all requests under way on a worker, minus the number of distinct ones among them."""
        return self._tree.repeated.get(worker, 0)

    def shared(
        self,
        blocks: "array[int]",
        held: Mapping[int, int],
        confirmed: Mapping[int, int],
        now: float,
        *,
        waits: bool,
    ) -> list[SharedPrefix]:
        """Return the prefixes that other requests share; `held`: as `held` returns it of `confirmed`.

        `waits`: the request is counted itself.
        """
        found: list[SharedPrefix] = []
        computed = max(confirmed.values(), default=0)
        counts = sorted(held.values())
        begin = 0
        for end, requests in self._tree.shared(blocks):
            if requests <= waits:
                break
            holders = len(counts) - bisect_left(counts, end)
            regret_ms = self.regrets.ms(blocks[begin], holders, now)
            found.append(
                SharedPrefix(BLOCK_TOKENS * end, requests - waits, holders, regret_ms, computed >= end)
            )
            begin = end
        return found

    def longest_match(self, confirmed: Mapping[int, int], blocks: "array[int]", *, waits: bool) -> int:
        """Return the most leading blocks that any worker holds, or that another request has.

        That request is under way, or waits here; `waits`: the request itself is counted among those.
        """
        others = (part.end for part in self._tree.shared(blocks) if part.requests > waits)
        return max(max(confirmed.values(), default=0), max(others, default=0))

    def held(self, confirmed: Mapping[int, int], blocks: "array[int]") -> dict[int, int]:
        """Return the leading blocks that each worker holds or is about to hold."""
        held = dict(confirmed)
        for worker, count in self._tree.match(blocks).items():
            if worker != WAITING and count > held.get(worker, 0):
                held[worker] = count
        return held


def _whole_blocks(request: TraceRequest) -> "array[int]":
    return request.blocks[: request.prompt_tokens // BLOCK_TOKENS]
