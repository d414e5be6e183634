"""The dispatch window of a worker: when a request may leave the gateway's queue for that worker.

Requests wait in the gateway, where the order is the gateway's, and not in the engine's own queue. A worker is sent
at most a window of uncached prompt tokens at a time; what has no space in the window waits.

    |---- narrow ----|                 batch work; of several tenants, one that has more requests waiting
    |---- wide ----------------|       every other request: it need not wait for those (while requests are of one
                                       class, only what is ahead of a prompt counts: DispatchWindow.taken_by)
    |- open -|                         ahead of another worker at most, when a long prompt starts on an idle one

A long prompt holds an engine for its whole length, so it leaves another worker open, unless it is of a tenant with
little of the recent work. While requests are of one class, a prompt is long that exceeds the wide window (is_long).

window_sizes.py computes how wide each window is, window_room.py whether a worker has room in it, hold.py whether a
request takes a worker with room or waits for a better one, closed_workers.py which workers others wait for.
docs/pages/measures/policy-experiments.md has the experiments.

A gateway that gives turns by itself follows these rules, and so do dispatch_windows.lua and best_route.lua in
gateway/queueing/shared/lua for the turns of all gateways, inside Redis. Only there, and in the simulation, is the
work of other cells counted by itself (`of_other_cells` of fits_window).
"""

from collections.abc import Sequence
from math import inf

import msgspec

from policies.admission.filled_workers import OPEN_SPARE_SHARE, FilledWorkers, slots_allowed
from policies.admission.recent_work import CROWDING_MAX, CROWDING_SHARE
from policies.admission.search_bounds import PASSED_OVER_MAX
from radix_cache.match import WorkerId


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
    """How many waiting requests the queue of all gateways passes over; see passed_over_max of search_bounds.py."""

    @property
    def awaits_one(self) -> bool:
        """Whether requests wait for workers of their own (awaited_tokens.py): none has to go before others."""
        return not self.contended and not self.counts_own

    @property
    def widest(self) -> int:
        """The most tokens that a worker may have ahead, whatever the request."""
        of_filled = () if self.filled is None else (self.filled.tokens, self.filled.open_tokens or 0)
        return max(self.narrow, self.wide, *of_filled)

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
        """Return the window of a worker for a request. `patient`: the result of `is_patient` for the request."""
        filled = self.filled
        if patient and filled is not None:
            if worker > filled.last_open:
                return filled.narrow_tokens if is_narrow else filled.tokens
            return self.narrow if filled.open_tokens is None else filled.open_tokens
        return self.narrow if is_narrow else self.wide

    def choices(self, asked: Sequence[tuple[WorkerId, int]], *, patient: bool) -> list[bool]:
        """Return for each of these workers whether a request may wait for it.

        `asked`: each with the uncached tokens there.

        Requests of patient classes go to open workers if they are short, and those of urgent classes to filled
        ones if more of the prompt is cached there. Beside tenants that crowd, short prompts of these go to open
        workers, and of others all that are no longer than the window. Before a crowd is one, long prompts of a
        tenant with most of the recent work go to open workers only if more of them is cached there: the first ones
        of a flood find all workers idle. Without any choice all are allowed.
        """
        filled = self.filled
        if filled is None or not (patient or self.contended or self.counts_own):
            return [True] * len(asked)
        if filled.open_tokens is not None:
            longest: float = filled.open_tokens if patient else self.wide
            if not self.contended:
                elsewhere = min(
                    (tokens for worker, tokens in asked if worker > filled.last_open), default=inf
                )
                longest = max(longest, elsewhere - 1)
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

    def takes_dearer(self, *, is_narrow: bool, patient: bool) -> bool:
        """Return whether a request takes a worker that costs more than the best one (hold_while_contended).

        So does one of a patient class, batch work included: the open worker is the best one for it whenever less is
        ahead there, but has hardly ever room in the narrow window, while a filled worker with room would compute
        nothing. And so does one of a tenant that does not crowd, beside one that does.
        """
        return (patient and self.counts_own) or (self.contended and not is_narrow)

    def waits_for_slots(self, *, patient: bool) -> bool:
        """Return whether a request may wait for a worker whose engine has no slot for it, beside one that has.

        One of a patient class may not: it would wait for the open worker, the cheapest, until an answer ends there
        while a filled worker has a slot and space.
        """
        return not (patient and self.counts_own)

    def slots_allowed(
        self,
        slots: int | None,
        *,
        background: bool,
        is_narrow: bool = False,
        work_share: float = 0.0,
        for_urgent: bool = False,
    ) -> float:
        """Return how many of an engine's slots may be taken once a request has one; infinity: any number.

        Batch work leaves some to other classes, and the other patient classes a few of an open worker
        (`for_urgent`). A tenant that crowds (`is_narrow`) leaves some to others, and one with most of the recent
        work (`work_share`) before it has requests waiting: what runs cannot be taken back.
        """
        if self.counts_own if background else is_narrow or work_share > CROWDING_SHARE:
            return slots_allowed(slots)
        return slots_allowed(slots, share=OPEN_SPARE_SHARE) if for_urgent else inf

    def keeps_for_urgent(self, worker: WorkerId, *, patient: bool) -> bool:
        """Return whether a request leaves slots of a worker to urgent classes, which have no other worker."""
        filled = self.filled
        return patient and self.counts_own and filled is not None and worker <= filled.last_open

    def open_beside(self, *, is_narrow: bool, work_share: float) -> int | None:
        """Return how many tokens may be ahead of a worker that a long prompt leaves open; None: it need leave none.

        Of requests of one class those of tenants that crowd have to, and of tenants with more of the recent work
        than others (`work_share`). A long prompt of another tenant would wait for two idle workers otherwise, while
        crowding tenants keep all but one busy. Where workers are filled beside crowding tenants, others are open
        for as long as the tenants that do not crowd find room there. An open worker may still compute a long prompt
        that came before the crowd was one: then a filled worker is left to them.
        """
        if not (self.counts_own or is_narrow or work_share > CROWDING_SHARE / CROWDING_MAX):
            return None
        filled = self.filled
        if self.open is not None and filled is not None and filled.open_tokens is not None and self.contended:
            return self.wide
        return self.open

    def is_long(self, uncached_tokens: int, window_tokens: int) -> bool:
        """Return whether a prompt is so long that it has to leave another worker open.

        `window_tokens`: the window of the worker for its request. While requests are of one class, others find room
        behind as many tokens as the wide window has, so a prompt of that length need leave no worker open. When all
        that exceeded the narrow window had to, workers were idle past saturation while the requests of a crowd
        waited: docs/pages/measures/policy-experiments.md.
        """
        return uncached_tokens > (window_tokens if self.counts_own else max(window_tokens, self.wide))

    def taken_by(self, uncached_tokens: int, *, is_narrow: bool, patient: bool = False) -> int:
        """Return how many tokens a prompt takes of its window itself, beside what is ahead of it.

        A prompt that waits for space for its whole length closes its worker to later requests, which then computes
        ever shorter steps. While several classes come it has to, since it may be ahead of an urgent one. Otherwise
        any space will do. Only what makes a prompt longer than the window has to fit, so that it ends within two
        windows, as every shorter one does: an idle worker is rare once engines wait for KV memory, and all that
        share the prompt's prefix would wait with it. Workers that crowding tenants fill are never idle: there any
        space will do for every prompt.
        """
        filled, is_long = self.filled, uncached_tokens > self.wide
        if filled is not None and filled.open_tokens is not None and self.contended and (patient or is_long):
            return 1
        return uncached_tokens if is_narrow or self.counts_own else max(1, uncached_tokens - self.wide)
