"""The view of the fleet that one simulated gateway has: loads, speeds, and the prefixes in flight.

As in gateway/dispatch, a request counts from the moment of dispatch, and is taken off at its first token and at its
end. Several gateways may share one view (loads in Redis, exact), or each has its own: announcements of the others'
dispatches, first tokens and ends arrive like KV events, and reports of their loads later, or never
(gateway_announcements.py; policies/others_load.py combines the two).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from policies.admission.awaited_tokens import AwaitedTokens
from policies.admission.passed_over import WorkerAhead
from policies.admission.ttft_chance import MeetsTarget
from policies.admission.window_room import fits_window
from policies.latency_model import computed_tokens
from policies.others_load import NO_TOTALS, LoadTotals, OthersLoad, must_be_computed_at
from policies.routing.protocol import Candidate
from policies.simulation.prefixes_in_flight import PrefixesInFlight
from policies.simulation.scenario import Scenario
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.worker_speeds import WorkerSpeeds
from radix_cache.match import WorkerId
from workers.worker import WorkerSnapshot

AGE_REPORTED_SECONDS_MAX = 600.0
"""From this age on, policies do not get the age of a worker."""


class Expected(NamedTuple):
    """What is counted for a request from its dispatch."""

    uncached_tokens: int
    """Prompt tokens to compute, until the first token."""
    kv_tokens: int
    """Tokens of the prompt and the answer."""


class GatewayView:
    """The view of one gateway; workers are known by their place in the fleet."""

    def __init__(self, workers: Sequence[WorkerId], scenario: Scenario) -> None:
        self._ids = workers
        self._kv_tokens_max = scenario.kv_tokens
        self._chunk_tokens = scenario.times.chunk_tokens
        self.slots = scenario.times.sequences_max
        """Requests that each engine runs at a time."""
        self._queued = [0] * len(workers)
        self._since = [0.0] * len(workers)
        self._streams = [0] * len(workers)
        self._kv_tokens = [0] * len(workers)
        """Prompt and expected answer of every request under way, as if nothing was shared."""
        self._snapshots: list[WorkerSnapshot | None] = [None] * len(workers)
        self._as_of = [0.0] * len(workers)
        """When each snapshot was made."""
        self._bare: list[Candidate | None] = [None] * len(workers)
        self._others: list[OthersLoad[int]] = [OthersLoad() for _ in workers]
        self._reported = [NO_TOTALS] * len(workers)
        self._of_cells = [NO_TOTALS] * len(workers)
        """The load of other cells, as they published it."""
        self._recently: set[int] = set()
        self._away = [0] * len(workers)
        """Tokens that are counted as queued in addition on workers that are at home in another cell."""
        self._joined: dict[int, float] = {}
        self._awaited = AwaitedTokens[int, int]()
        self._awaited_counted: Mapping[int, int] = self._awaited.tokens
        self.prefixes = PrefixesInFlight()
        self.gateways = 1 if scenario.sync_seconds == 0 else scenario.gateways // scenario.cells
        """How many gateways of the cell get a part of the requests each, and none of the others' waits."""
        self.on_change: list[tuple[partial[None], ...]] = [()] * len(workers)
        """By worker: called after every change of what is known of it."""
        self.speeds = WorkerSpeeds(scenario, len(workers), self._changed)

    def candidates(
        self, held: Mapping[int, int], prompt_tokens: int, up: Collection[int], now: float
    ) -> list[Candidate]:
        """Return the workers in `up`, each with what it holds of the prompt or is about to hold."""
        counted = self._awaited.counted(up)
        if counted is not self._awaited_counted:
            self._awaited_counted = counted
            self._snapshots = [None] * len(self._snapshots)
        found = []
        for worker in up:
            blocks_held = held.get(worker)
            snapshot = self.snapshot(worker, now)
            if blocks_held is None:
                bare = self._bare[worker]
                if bare is None or bare.worker is not snapshot:
                    bare = self._bare[worker] = Candidate(worker=snapshot)
                found.append(bare)
            else:
                matched = min(blocks_held * BLOCK_TOKENS, prompt_tokens)
                found.append(Candidate(worker=snapshot, matched_tokens=matched))
        return found

    def snapshot(self, worker: int, now: float) -> WorkerSnapshot:
        """Return the state of a worker, as policies get it."""
        found, queued = self._snapshots[worker], self._queued[worker]
        if found is None or ((queued or worker in self._joined) and self._as_of[worker] != now):
            self._as_of[worker] = now
            found = self._snapshots[worker] = WorkerSnapshot(
                id=self._ids[worker],
                tokens_queued=queued + self._away[worker] + self._awaited_counted.get(worker, 0),
                away_tokens=self._away[worker],
                tokens_computed=self._computed(worker, now) if queued else 0,
                streams=self._streams[worker],
                requests_awaiting=self._awaited.requests.get(worker, 0),
                kv_tokens=self._kv(worker),
                kv_tokens_max=self._kv_tokens_max,
                chunk_tokens=self._chunk_tokens,
                speed=self.speeds.of[worker],
                age_seconds=self._age(worker, now) if self._joined else None,
            )
        return found

    def join(self, worker: int, now: float) -> None:
        """Record that a worker has joined or is up again."""
        self._joined[worker] = now
        self._changed(worker)

    def leave(self, worker: int) -> None:
        """Record that a worker gets no new requests."""
        self._changed(worker)

    def worker_id(self, worker: int) -> WorkerId:
        """Return the name of a worker."""
        return self._ids[worker]

    def computed(self, worker: int, now: float) -> int:
        """Return how many of the queued tokens a worker has computed, as far as is known."""
        return self._computed(worker, now)

    def set_homes(self, homes: Sequence[bool], away_tokens: int) -> None:
        """Take over which workers are at home in this view's cell, and what counts as queued on the others."""
        for worker, home in enumerate(homes):
            tokens = 0 if home else away_tokens
            if tokens != self._away[worker]:
                self._away[worker] = tokens
                self._changed(worker)

    def take_changed(self) -> list[int]:
        """Return the workers of which anything has changed since the last call."""
        changed, self._recently = sorted(self._recently), set()
        return changed

    def own_load(self, worker: int) -> LoadTotals:
        """Return what the gateways of this cell have under way on a worker."""
        others = self._of_cells[worker]
        return LoadTotals(
            self._queued[worker] - others.tokens_queued,
            self._streams[worker] - others.streams,
            self._kv_tokens[worker] - others.kv_tokens,
        )

    def take_load_of_cells(self, worker: int, others: LoadTotals, now: float) -> None:
        """Take over the load of other cells on a worker, as they published it."""
        before = self._of_cells[worker]
        if others == before:
            return
        self._of_cells[worker] = others
        if others.tokens_queued < before.tokens_queued:
            self._since[worker] = now
        mine = worker in self._recently
        self._add(worker, others.plus(before, -1), now)
        if not mine:
            self._recently.discard(worker)

    def _age(self, worker: int, now: float) -> float | None:
        since = self._joined.get(worker)
        if since is None:
            return None
        if now - since > AGE_REPORTED_SECONDS_MAX:
            del self._joined[worker]
        return now - since

    def meets(
        self,
        meets: MeetsTarget,
        worker: int,
        tokens: int,
        left_ms: float,
        now: float,
    ) -> bool:
        """Return whether a worker meets a target `left_ms` from now; `tokens`: of the request, to compute."""
        ahead = self.tokens_ahead(worker, now)
        return self.speeds.meets(meets, worker, ahead + tokens, left_ms)

    def has_room(self, worker: int, tokens: int) -> bool:
        """Return whether so many more tokens fit into a worker's KV memory, as far as is known."""
        return self._streams[worker] == 0 or self._kv(worker) + tokens <= self._kv_tokens_max

    def fits(self, worker: int, uncached_tokens: int, window_tokens: int, *, ahead: bool = False) -> bool:
        """Return whether a request fits into a worker's window; `ahead`: only if the worker is idle."""
        if ahead:
            return not self._queued[worker]
        of_other_cells = self._of_cells[worker].tokens_queued
        return fits_window(self._queued[worker], uncached_tokens, window_tokens, of_other_cells)

    def queued(self, worker: int) -> int:
        """Return the uncached tokens sent to a worker that have not brought a first token."""
        return self._queued[worker]

    def ahead(self, worker: int) -> WorkerAhead:
        """Return the tokens and streams of a worker by which it has room for a request or not."""
        queued = self._queued[worker]
        return queued, queued - self._of_cells[worker].tokens_queued, self._streams[worker]

    def streams(self, worker: int) -> int:
        """Return how many requests a worker has."""
        return self._streams[worker]

    def tokens_ahead(self, worker: int, now: float) -> int:
        """Return how many of the queued tokens a worker has not computed yet, as far as is known."""
        return self._queued[worker] - self._computed(worker, now)

    def await_worker(self, number: int, worker: int, uncached_tokens: int) -> None:
        """Let a request that waits here wait for this worker; what waits counts once for each gateway."""
        self._awaited.wait(number, worker, uncached_tokens, gateways=self.gateways)
        self._changed(worker)

    def stop_awaiting(self, number: int) -> None:
        """Let a request wait for no certain worker."""
        worker = self._awaited.leave(number)
        if worker is not None:
            self._changed(worker)

    def awaited_worker(self, number: int) -> int | None:
        """Return the worker that a request waits for; None if it waits for no certain one."""
        return self._awaited.worker_of(number)

    def stop_waiting(self, number: int) -> None:
        """Drop a request that no longer waits in the gateway."""
        self.stop_awaiting(number)
        self.prefixes.stop_waiting(number)

    def dispatched(
        self, worker: int, number: int, request: TraceRequest, expected: Expected, now: float
    ) -> None:
        """Count a request that is sent to a worker, and expect that it brings its prompt's blocks there."""
        self._add(worker, LoadTotals(expected.uncached_tokens, 1, expected.kv_tokens), now)
        self.stop_awaiting(number)
        self.prefixes.stop_waiting(number)
        self.prefixes.bring(worker, number, request)

    def first_token(self, worker: int, uncached_tokens: int, now: float) -> None:
        """Take the tokens of a request that has its first token out of the worker's queue."""
        self._since[worker] = now
        self._queued[worker] -= uncached_tokens
        self._changed(worker)

    def ended(self, worker: int, number: int, expected: Expected) -> None:
        """Take a request that has ended off the worker's load."""
        self._kv_tokens[worker] -= expected.kv_tokens
        self._streams[worker] -= 1
        self.prefixes.end(worker, number)
        self._changed(worker)

    def dispatched_elsewhere(
        self,
        worker: int,
        number: int,
        request: TraceRequest,
        *,
        uncached_tokens: int,
        sent_at: float,
        now: float,
    ) -> None:
        """Count a request that another gateway sent to a worker, where its prompt's blocks are expected then.

        `sent_at`: seconds since the trace began.
        """
        self.prefixes.bring(worker, number, request)
        before = self._others[worker].totals
        tokens = uncached_tokens + self.tokens_ahead(worker, now)
        self._others[worker].dispatched(
            number,
            uncached_tokens=uncached_tokens,
            kv_tokens=request.prompt_tokens,
            sent_at=sent_at,
            ready_at=must_be_computed_at(sent_at, tokens, self.speeds.of[worker]),
        )
        self._others_changed(worker, before, now)

    def computed_elsewhere(self, worker: int, number: int, at: float, now: float) -> None:
        """Take the prompt of a request of another gateway off the queue: it was computed at the moment `at`."""
        before = self._others[worker].totals
        self._others[worker].computed(number, at)
        self._others_changed(worker, before, now)

    def ended_elsewhere(self, worker: int, number: int, at: float, now: float) -> None:
        """Take off a request of another gateway that ended at the moment `at`."""
        self.prefixes.end(worker, number)
        before = self._others[worker].totals
        self._others[worker].ended(number, at)
        self._others_changed(worker, before, now)

    def take_load_report(self, worker: int, change: LoadTotals, as_of: float, now: float) -> None:
        """Take over a report of the other gateways' load, which has changed by so much at the moment `as_of`."""
        total = self._reported[worker] = self._reported[worker].plus(change)
        if as_of >= self._others[worker].as_of:
            self._take_report(worker, total, as_of, now)

    def take_queue_load(self, worker: int, load: LoadTotals, now: float) -> None:
        """Take over the present load of all gateways together, which a reply of their queue contains."""
        own = LoadTotals(self._queued[worker], self._streams[worker], self._kv_tokens[worker])
        others = load.plus(own, -1).plus(self._others[worker].totals)
        self._take_report(worker, others, now, now)

    def _take_report(self, worker: int, others: LoadTotals, as_of: float, now: float) -> None:
        before = self._others[worker].totals
        self._others[worker].report(others, as_of)
        self._others_changed(worker, before, now, as_of)

    def _others_changed(
        self, worker: int, before: LoadTotals, now: float, as_of: float | None = None
    ) -> None:
        """Take over the load of the other gateways, which was `before`, as WorkerLoad does."""
        self._others[worker].take_off_computed(now)
        after = self._others[worker].totals
        if after == before and as_of is not None:
            return  # The report has nothing that was not announced before.
        if after.tokens_queued < before.tokens_queued:
            self._since[worker] = max(self._since[worker], now if as_of is None else as_of)
        self._add(worker, after.plus(before, -1), now)

    def _add(self, worker: int, load: LoadTotals, now: float) -> None:
        if not self._queued[worker]:
            self._since[worker] = now
        self._queued[worker] += load.tokens_queued
        self._streams[worker] += load.streams
        self._kv_tokens[worker] += load.kv_tokens
        self._changed(worker)

    def _kv(self, worker: int) -> int:
        """Return the KV tokens of the requests under way; a block that several of them have counts once."""
        return self._kv_tokens[worker] - BLOCK_TOKENS * self.prefixes.repeated_blocks(worker)

    def _computed(self, worker: int, now: float) -> int:
        ms = 1000 * (now - self._since[worker])
        return computed_tokens(ms, self._queued[worker], self.speeds.of[worker])

    def _changed(self, worker: int) -> None:
        self._snapshots[worker] = None
        self._recently.add(worker)
        for changed in self.on_change[worker]:
            changed()
