"""The waits that one more copy of a shared prefix would have spared: when they add up to its price, it is made.

To wait at the few holders of a prefix costs a little with every request; a copy on another worker costs much, once.
How long the demand will last is not known, so this is the ski-rental problem: to rent until the rents have reached
the price, and to buy then, costs at most twice the least cost with the demand known in advance (Karlin, Manasse,
Rudolph, Sleator: Competitive snoopy caching, Algorithmica 1988).

    regret = max(0, queue at the chosen holder - least queue at a worker that lacks it) max(0, 1 - price)
    queue  = s Q in the terms of cost.py
    credit = sum over requests of regret exp(- age / PAYBACK_SECONDS)
    copy   = - min(credit, s part (1 + price + w delayed)) in the terms of cost.py, for each part of the prompt;
                                                              without price and delay if it is copied by demand

The time that running streams take of a step is no part of it: the worker with the copy has such streams as well,
once it is used. A queue under backlog is due to a lack of compute, of which a copy takes more: it counts less, down
to nothing at a price of 1. A copy that is made takes the credit with it. A request that shares nothing with others
under way has no regret.

Lost: that time counted, too. One shared prompt at light load on unequal workers was copied to slow workers, 1.18
times the mean TTFT; workers of equal speed level (docs/pages/measures/policy-experiments.md).

With several gateways each one gets an equal part of the requests, so it counts a wait of its own once for every
gateway. That another gateway has made the copy shows in one more holder of the prefix; the credit is spent then,
too.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import exp, inf

from policies.routing.estimate import queue_ms
from policies.routing.protocol import Candidate, CopyRegret, Route, RouteQuery
from policies.routing.wanted_copies import WantedCopy

PAYBACK_SECONDS = 60.0
"""Time in which a copy has to pay for itself: a demand that is slower does not bring its price together."""

PREFIXES_MAX = 4096
"""The most parts of prompts with regrets that are kept; the one that was recorded least recently is dropped."""


def copy_regrets(
    query: RouteQuery,
    candidates: Sequence[Candidate],
    wanted: Sequence[WantedCopy],
    chosen: Route,
    price: float,
) -> tuple[CopyRegret, ...]:
    """Return what the request waits for want of copies if it goes where it is `chosen` to go."""
    size, counted = query.block_tokens, max(0.0, 1 - price)
    chosen_ms = next(queue_ms(one.worker) for one in candidates if one.worker.id == chosen.worker)
    regrets: list[CopyRegret] = []
    for part in wanted:
        at = part.begin // size
        if part.begin == part.end or at >= len(query.blocks):
            continue
        block = query.blocks[at]
        if chosen.matched_tokens < part.end:
            regrets.append(CopyRegret(block, part.holders, None))
            continue
        least = min(
            (queue_ms(one.worker) for one in candidates if one.matched_tokens < part.end), default=inf
        )
        if counted and least < chosen_ms:
            regrets.append(CopyRegret(block, part.holders, (chosen_ms - least) * counted))
    return tuple(regrets)


class RememberedRegrets:
    """The regrets of the requests so far, by the first block of the part that they share."""

    def __init__(self) -> None:
        self._sums: OrderedDict[int, tuple[float, int, float]] = (
            OrderedDict()
        )  # milliseconds, holders, and as of when

    def __len__(self) -> int:
        """Return how many parts of prompts are kept."""
        return len(self._sums)

    def ms(self, block: int, holders: int, now: float) -> float:
        """Return what requests have waited for one more copy of the part that begins with this block.

        It is 0 if the part has more `holders` than when the last request waited.
        """
        found = self._sums.get(block)
        if found is None:
            return 0.0
        ms, before, at = found
        if holders > before:
            return 0.0
        return ms * exp((at - now) / PAYBACK_SECONDS)

    def record(self, regrets: Sequence[CopyRegret], now: float, gateways: int = 1) -> None:
        """Add the regrets of one request, counted once for each of the `gateways`: the others serve as many.

        `now`: seconds, never backwards.
        """
        for regret in regrets:
            if regret.wait_ms is None:
                self._sums.pop(regret.block, None)
                continue
            self._sums[regret.block] = (
                self.ms(regret.block, regret.holders, now) + gateways * regret.wait_ms,
                regret.holders,
                now,
            )
            self._sums.move_to_end(regret.block)
            if len(self._sums) > PREFIXES_MAX:
                self._sums.popitem(last=False)
