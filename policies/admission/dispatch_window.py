"""The dispatch window of a worker: when a request may leave the gateway's queue for that worker.

Requests wait in the gateway, where the order is the gateway's, and not in the engine's own queue. A worker is sent
at most a window of uncached prompt tokens at a time; what has no space in the window waits.

    |---- narrow ----|                 batch work; of several tenants, one that has more requests waiting
    |---- wide ----------------|       every other request: it need not wait for those (while requests are of one
                                       class, only what is ahead of a prompt counts: DispatchWindow.taken_by)
    |- open -|                         ahead of another worker at most, when a prompt longer than its window starts
                                       on an idle one

While the requests that come are all of one class, and no tenant crowds out another one, the window has a fixed
number of tokens. It becomes a time while there are several classes, or tenants that have requests waiting and most
of the recent work, beside one that has none waiting (traffic_in_sight.py): an engine cannot let a request overtake
what it has been sent. The time is a share of the tightest TTFT target in sight, at the workers' learnt speed. In
this time an engine computes the prompts ahead of the next urgent request; the rest of the target is left for the
step under way and the request's own. Preempting is not enough: a step under way goes on to its end. A prompt that
is longer than its window holds an engine for its whole length, so it leaves another worker open, unless it is of a
tenant with little of the recent work. A tenant that has
no more requests waiting takes another worker then, at up to twice the cost: its best one is kept busy by the
others.

A narrow window costs compute: its steps are short, and between two of them lies one without any prompt, since the
next prompts are sent when the first tokens have come. Near saturation that alone makes a queue last. So it has to
gain something for tenants that have none waiting: the share of the work that is held back. Beside a standing flood
of long prompts it is half as wide, since the engine's step under way is most of the p99 TTFT of the others.

docs/pages/measures/policy-experiments.md has every experiment with its workload. TTFT in ms:

    taken   a time in place of 16,384 tokens: late beside a flood of batch work: voice 100 -> 1.4 %, code 0.5 %
            beside a tenant that asks for ten times its share: median of the others 6 -> 1.7 to 1.9 x that alone
            narrow only beside tenants that crowd: drift past saturation 139 -> 121, stampedes 323 -> 306
            a tenant with much of the work crowds by prompts longer than the window, before any waits: chats beside
            prompts of 48k, p99 319 -> 82
            half as wide beside a flood of long prompts: p99 of chats 162 -> 152, of drifting prompts 345 -> 307
            closed workers only for the crowding tenant (`vtc`): p99 of the others 193 -> 112
            two tenants that crowd are counted; a prompt no longer than the window takes any space (taken_by):
            over the mean without a queue, before and now: drift past saturation 1.14 -> 1.04, with little KV
            1.19 -> 1.02 and 1.09; stampedes with little KV 1.22 -> 1.06
            long prompts of tenants with little of the work take the last idle worker: p99 of conversations beside a
            flood 1.34 -> 1.05 x that alone, beside prompts of 48k 1.45 -> 1.03 x
            a tenant that crowds, or has most of the recent work, leaves slots: p99 of chats beside a flood of long
            answers 6,550 -> 90
            workers that others leave are filled beside tenants that crowd: p99 of chats beside a flood 1.8 -> 1.2 x
            that alone, beside two tenants with 48k 4.4 -> 1.0 to 1.4 x
            workers that urgent classes leave are filled (filled_workers.py): work beside batch prompts 0.87 -> 0.96
            of that without classes, beside long ones 0.85 -> 0.93; at most 0.6 % late, of chats beside 32k 3.5 %
    lost    CONTENDED_SHARE 0.3: +10 %.  long prompts on all workers: up to 3 times the TTFT
            half as wide beside short prompts or a burst: +5 to +10 %
            narrow by waiting tokens: p99 of chats while a flood begins 275, not 139; by the share of late work: 326
            recent work of 10 or 16 s in place of 4: p99 of conversations up to +15 %
            three tenants that crowd: drift with little KV 1.14; one: beside a flood of three, median 8 x
            any space for prompts longer than the window: p99 of chats while a flood begins 214, not 135
    level   victims that pay no price and no harm; a wide window for short prompts beside a narrow one for long ones

A gateway that gives turns by itself follows these rules, and so does gateway/queueing/shared/lua/best_route.lua for
the turns of all gateways, inside Redis. Only there, and in the simulation, is the work of other cells told
apart (`of_other_cells` of fits_window).
"""

from collections.abc import Collection, Iterable, Sequence
from math import inf

import msgspec

from policies.admission.filled_workers import FilledWorkers, leaves_slots
from policies.admission.recent_work import CROWDING_MAX, CROWDING_SHARE
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals
from radix_cache.match import WorkerId

NARROW_SHARE, WIDE_SHARE = 0.3, 0.6
"""What windows last, as shares of the tightest TTFT target in sight."""

WIDE_BESIDE_FILLED = 1.0
"""In place of WIDE_SHARE, where workers are filled. The narrow window of open workers is in FilledWorkers then.

An urgent request that waits in the gateway misses the engine's next step, and is late. In the engine it makes that
step longer by its own few tokens only. So it is sent as long as what is ahead of it leaves it in time.
"""

CONTENDED_SHARE = 0.2
"""In place of NARROW_SHARE, where tenants contend with requests of one class."""

FLOODED_SHARE = 0.1
"""In place of CONTENDED_SHARE, beside a standing flood of prompts that fill an engine's step by themselves."""

OPEN_BESIDE_CROWD, OPEN_BEFORE_CROWD = 0.085, 0.2
"""What a tenant has ahead of an open worker at most, as shares of the TTFT target: one that crowds and fills the
others, where a standing flood of long prompts gets less; and before it crowds, one with most of the recent work."""

SHORT_TOKENS = 4096
"""Uncached tokens, in the mean of a flood's waiting prompts, up to which an engine's step needs several of them."""

STANDING_WINDOWS = 4
"""A tenant floods while prompts of more than this many times `tokens_max` of the settings wait of it."""

OPEN_SHARE = 0.5
"""Share of the narrow window that an open worker has ahead at most."""

OPEN_OF_WORKERS = 4
"""Of so many workers at least one is left open by long prompts that are not batch work."""

CONTENDED_HOLD = 1.0
"""Share by which a worker may cost more than the best one, for a tenant that has no more requests waiting, beside a
tenant that has."""

HOLD_MS = 10.0
"""A saving below this many milliseconds is not worth a wait."""

PASSED_OVER_MAX = 16
"""Waiting requests that are passed over, because they would rather wait for their own worker, before the search for
one that fits a free worker ends."""

PASSED_OVER_EVERY, PASSED_OVER_OF_FLEET_MAX = 16, 128
"""In a queue of all gateways it is one for each 16 workers, where that is more, up to 128; see passed_over_max."""

PASSED_OVER_OF_FLOW_MAX = 4
"""Of these, at most so many of one tenant and service class."""

LOOK_TOKENS, LOOK_SHARE = 1024, 1 / 16
"""Free space of so many tokens, or of this share of the window, is enough to rank the waiting requests again."""


class DispatchWindow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many uncached prompt tokens a worker may have ahead, by the request that is to be sent."""

    narrow: int
    """For batch work and, if `contended`, for a tenant that has more requests waiting; on open workers (`filled`)
    for all patient classes."""
    wide: int
    """For every other request."""
    open: int | None = None
    """At most so many tokens are ahead of an open worker; None: long prompts need not leave a worker open."""
    contended: bool = False
    """Whether tenants crowd out another one."""
    counts_own: bool = False
    """Whether a prompt takes space of the wide window itself; of the narrow one it always does. So it is while
    several classes come."""
    filled: FilledWorkers | None = None
    """The workers that patient classes or crowding tenants fill; None: all workers have the same windows."""
    passed_over_max: int = PASSED_OVER_MAX
    """How many waiting requests the queue of all gateways passes over; see the function of this name."""

    @property
    def awaits_one(self) -> bool:
        """Whether requests wait for workers of their own (awaited_tokens.py): none has to go before others."""
        return not self.contended and not self.counts_own

    def is_patient(self, target_seconds: float, *, is_narrow: bool = False, work_share: float = 0.0) -> bool:
        """Return whether a request fills the workers that others leave.

        It does so by the TTFT target of its class or, where workers are filled beside tenants, if its tenant crowds
        (`is_narrow`) or has more of the recent work than others (`work_share`).
        """
        if self.filled is None:
            return False
        if self.filled.open_tokens is None:
            return target_seconds >= self.filled.patient_seconds
        return is_narrow or work_share > (CROWDING_SHARE / CROWDING_MAX if self.contended else CROWDING_SHARE)

    def tokens(self, worker: WorkerId, *, is_narrow: bool, patient: bool) -> int:
        """Return the window of a worker for a request. `patient`: its class is (is_patient)."""
        filled = self.filled
        if patient and filled is not None:
            if worker > filled.last_open:
                return filled.tokens
            return self.narrow if filled.open_tokens is None else filled.open_tokens
        return self.narrow if is_narrow else self.wide

    def choices(self, asked: Sequence[tuple[WorkerId, int]], *, patient: bool) -> list[bool]:
        """Return which of these workers a request may wait for; `asked`: each with the uncached tokens there.

        Requests of patient classes go to open workers if they are short, and those of urgent classes to filled
        ones if more of the prompt is cached there. Beside tenants that crowd, short prompts of these go to open
        workers, and of others all that are no longer than the window. Without any choice all are allowed.
        """
        filled = self.filled
        if filled is None or not (self.contended or self.counts_own):
            return [True] * len(asked)
        if filled.open_tokens is not None:
            longest = filled.open_tokens if patient else self.wide
            found = [worker > filled.last_open or tokens <= longest for worker, tokens in asked]
            return found if any(found) else [True] * len(asked)
        least = min((tokens for worker, tokens in asked if worker <= filled.last_open), default=inf)
        found = [
            (not patient or tokens <= self.narrow)
            if worker <= filled.last_open
            else patient or tokens < least
            for worker, tokens in asked
        ]
        return found if any(found) else [True] * len(asked)

    def leaves_slots(
        self,
        streams: int,
        slots: int | None,
        *,
        background: bool,
        is_narrow: bool = False,
        work_share: float = 0.0,
    ) -> bool:
        """Return whether a request may have a slot of an engine, where others have to find some left.

        Batch work leaves some to other classes. A tenant that crowds (`is_narrow`) leaves some to others, and one
        with most of the recent work (`work_share`) before it has requests waiting: what runs cannot be taken back.
        """
        has_to = self.counts_own if background else is_narrow or work_share > CROWDING_SHARE
        return not has_to or leaves_slots(streams, slots)

    def open_beside(self, *, is_narrow: bool, work_share: float) -> int | None:
        """Return `open` for a request; None if its prompt need not leave a worker open, however long it is.

        Of requests of one class those of tenants that crowd have to, and of tenants with more of the recent work
        than others (`work_share`). A long prompt of another tenant would wait for two idle workers otherwise, while
        crowding tenants keep all but one busy. Where workers are filled beside crowding tenants, others are open
        already.
        """
        filled = self.filled
        if filled is not None and filled.open_tokens is not None and self.contended:
            return None
        has_to = self.counts_own or is_narrow or work_share > CROWDING_SHARE / CROWDING_MAX
        return self.open if has_to else None

    def taken_by(self, uncached_tokens: int, *, is_narrow: bool, patient: bool = False) -> int:
        """Return how many tokens a prompt takes of its window itself, beside what is ahead of it.

        A prompt that waits for space for its whole length closes its worker to later requests, which then computes
        ever shorter steps. While several classes come it has to, since it may be ahead of an urgent one. Otherwise
        any space will do, but for a prompt that is longer than the window: it waits for an idle worker, or the
        first requests of tenants with little to do would wait for it as a flood begins (chats' p99 214 ms in place
        of 135, beside a flood of mixed prompts, five seeds). Workers that crowding tenants fill are never
        idle: there any space will do for every prompt.
        """
        filled, is_long = self.filled, uncached_tokens > self.wide
        if filled is not None and filled.open_tokens is not None and self.contended and (patient or is_long):
            return 1
        return uncached_tokens if is_narrow or self.counts_own or is_long else 1


class ClosedWorkers(set[WorkerId]):
    """The workers that requests with an earlier turn wait for, and that no later request may take.

    A tenant that has more requests waiting cannot use what lies between its narrow window and the wide one. So the
    workers that its requests wait for are closed to such tenants alone: they are in `to_crowding`, not in the set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.to_crowding: set[WorkerId] = set()

    def allows(self, worker: WorkerId, *, crowds: bool) -> bool:
        """Return whether a request may take this worker; `crowds`: its tenant has more requests waiting."""
        return worker not in self and not (crowds and worker in self.to_crowding)

    def close(self, workers: Iterable[WorkerId], *, crowds: bool) -> None:
        """Close workers that a request waits for."""
        (self.to_crowding if crowds else self).update(workers)


def passed_over_max(workers: int) -> int:
    """Return how many waiting requests the queue of all gateways passes over, with so many workers.

    The more workers there are, the more requests wait for one that holds their prompt. With only eight passed over,
    those behind them waited beside idle workers: mean TTFT of 1,200 simulated workers at a high load was 148 ms,
    not 132, and of 2,000 workers 225, not 116. With four workers eight were too few while some have no KV memory
    left: requests that wait for those stood before all others (agents past saturation, four seeds, over the mean
    without a queue: 1.34, with 16 of them 1.00). But requests that are passed over lose their turn to others: with
    128 of them, shares on ten workers at three times their capacity were less even (0.92, not 0.98). A gateway that
    gives turns alone ranks workers at each look, so it keeps to PASSED_OVER_MAX.
    """
    return min(PASSED_OVER_OF_FLEET_MAX, max(PASSED_OVER_MAX, workers // PASSED_OVER_EVERY))


def dispatch_window(
    targets: Collection[float],
    *,
    contended: bool,
    ms_per_token: float,
    tokens_max: int,
    batch_seconds: float,
    flood: WaitingTotals = NONE_WAITING,
    filled: FilledWorkers | None = None,
    workers: int = 0,
) -> DispatchWindow:
    """Return the window while requests with these TTFT targets come, in seconds.

    `contended`: see DispatchWindow. `ms_per_token`: the workers' speed. `batch_seconds`: the target of batch work,
    for which no worker has to be left open. `flood`: what waits of tenants that have had most of all waiting
    requests for a while. `filled`: the workers that patient classes fill or, with one class in sight, tenants that
    crowd. `workers`: how many there are.
    """
    tightest = min(targets, default=batch_seconds)
    tokens = 1000 * tightest / ms_per_token
    if len(targets) < 2 and filled is not None:
        share = (
            OPEN_BEFORE_CROWD if not contended else OPEN_BESIDE_CROWD * _of_short_prompts(flood, tokens_max)
        )
        filled = (
            msgspec.structs.replace(filled, open_tokens=int(share * tokens))
            if tightest < batch_seconds
            else None
        )
    if not targets or (len(targets) == 1 and not contended):
        return DispatchWindow(
            narrow=tokens_max, wide=tokens_max, filled=filled, passed_over_max=passed_over_max(workers)
        )
    if len(targets) > 1:
        narrow_share = NARROW_SHARE if filled is None else filled.narrow_share
    else:
        narrow_share = max(FLOODED_SHARE, CONTENDED_SHARE * _of_short_prompts(flood, tokens_max))
    wide_share = WIDE_SHARE if filled is None or len(targets) == 1 else WIDE_BESIDE_FILLED
    narrow = min(tokens_max, max(1, int(narrow_share * tokens)))
    return DispatchWindow(
        narrow=narrow,
        wide=min(tokens_max, max(1, int(wide_share * tokens))),
        open=int(OPEN_SHARE * narrow) if tightest < batch_seconds else None,
        contended=contended,
        counts_own=len(targets) > 1,
        filled=filled,
        passed_over_max=passed_over_max(workers),
    )


def _of_short_prompts(flood: WaitingTotals, tokens_max: int) -> float:
    """Return 1 where no flood stands or its prompts are short, and less the longer they are."""
    if flood.tokens < STANDING_WINDOWS * tokens_max:
        return 1.0
    return min(1.0, SHORT_TOKENS * flood.requests / flood.tokens)


def leaves_one_open(tokens_queued: Iterable[int], open_tokens: int, *, background: bool) -> bool:
    """Return whether an idle worker may take a prompt that is longer than the window: another worker is open.

    `tokens_queued` has the tokens ahead of every worker that could take the prompt, the idle one included. A worker
    that is the only one need not stay open: long prompts would starve. Of few workers only batch work leaves one
    open: the rest would lose too much of what they can do.
    """
    workers = open_workers = 0
    for tokens in tokens_queued:
        workers += 1
        open_workers += tokens <= open_tokens
    return workers == 1 or open_workers > 1 or (workers < OPEN_OF_WORKERS and not background)


def fits_window(
    tokens_queued: int, uncached_tokens: int, window_tokens: int, of_other_cells: int = 0
) -> bool:
    """Return whether a prefill that takes so many tokens may be sent to a worker with `tokens_queued` ahead of it.

    `uncached_tokens`: its own, as far as they take space (DispatchWindow.taken_by).

    An idle worker takes anything, also a prompt that is longer than the window. So does a worker where all that is
    ahead is of other cells, which might keep it busy for ever; `of_other_cells` are those of the tokens queued, as
    far as they can be told apart.

    A token that the worker has already computed counts as queued until the request's first token. Not to count it,
    where KV is not short, gained 6 % of mean TTFT near saturation (a public trace, 8 workers, three seeds) and cost
    tenants that are flooded by others 7 % of theirs (four seeds), as more of the flood was in the engines' queues.
    """
    return tokens_queued == of_other_cells or tokens_queued + uncached_tokens <= window_tokens


def worth_ranking_again(tokens_queued: int, least_tokens: int, window_tokens: int) -> bool:
    """Return whether a worker has space for one of the waiting requests, so that they should be ranked again.

    `least_tokens` is the smallest number of uncached prompt tokens among the waiting requests.

    A ranking costs a good part of what a request costs: with hundreds of requests waiting for a full fleet, ranking
    after every answer means several rankings for each request. More of a prompt may be cached by now than on
    arrival, so that a prompt fits where none seems to. That possibility is worth a ranking once LOOK_TOKENS are
    free, or LOOK_SHARE of a narrow window, but not before.
    """
    worth = min(LOOK_TOKENS, int(LOOK_SHARE * window_tokens))
    return fits_window(tokens_queued, min(least_tokens, worth), window_tokens)


def hold_while_contended(hold: float | None) -> float | None:
    """Return the `hold` of a tenant that has no more requests waiting, beside one that has.

    Its best worker is kept busy by the other tenant, so it takes another one at up to twice the cost. With any
    worker, conversations would leave their caches: Claude Code sessions of twelve tenants had 6 % more TTFT.
    """
    return None if hold is None else max(hold, CONTENDED_HOLD)


def close_enough_to_best(cost_ms: float, least_ms: float, hold: float | None) -> bool:
    """Return whether a worker of cost `cost_ms` is good enough not to wait for the best one, of cost `least_ms`.

    `hold` is how much more expensive the worker may be, as a share of the least cost; with None any worker will do.
    A difference below HOLD_MS is never worth a wait.

    Measured by simulated queues (policies/simulation/turn_queue.py) on a public trace and generated ones: 0 in
    place of 0.1 is as good or better everywhere (TTFT of agents -18 %, goodput near saturation +3 %), None costs a
    sixth of the hit ratio. What did not pay, or not enough: to let later requests into the window that an earlier
    one waits for (2 % of TTFT), to keep long prompts to some of the workers (nothing).
    """
    return hold is None or cost_ms <= least_ms + max(abs(least_ms) * hold, HOLD_MS)
