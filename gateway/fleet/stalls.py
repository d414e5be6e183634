"""Finds workers that have stalled: they keep their connections open, and send nothing any more.

    bytes come | silence                | quiet: a probe is sent     | stalled: down, requests     | streams are
               |                        |                            | go elsewhere                | broken off
               |- quiet_after_seconds --|- PROBE_ANSWER_SECONDS_MAX -|- ... -----------------------|
               |- BROKEN_SECONDS, or twice quiet_after_seconds if that is longer ------------------|

A worker counts as quiet by its own pace: many times the gap between its tokens, and the time that its queued
prompts take. A quiet worker may be computing a long prompt, but then its server answers the probe, and any byte of
any connection ends the silence. What is done grows with the silence: a request without a first byte costs little to
send elsewhere, while a broken stream is lost. Streams are broken off only while other workers can serve.

Silence is counted in looks, each of which follows an iteration of the event loop that reads all sockets: a gateway
that was held up, or stopped, counts no silence for that time.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.fleet.worker import Worker
from policies.latency_model import predicted_ttft_ms
from radix_cache.match import WorkerId
from workers.adapter import SupportsStallDetection
from workers.worker import Health

LOOK_SECONDS = 0.25

QUIET_SECONDS_MIN = 1.0
QUIET_STEPS = 50
"""A worker is quiet after so many times the usual gap between two tokens of a stream."""
PREFILL_SECONDS_MAX = 4.0
"""Queued prompts excuse silence for so long at most: servers answer probes while their engines compute."""

PROBE_ANSWER_SECONDS_MAX = 2.0
"""How long a quiet worker has to answer a probe, or anything else."""

BROKEN_SECONDS = 10.0
"""Least silence after which also begun streams are broken off."""


class WatchedFleet(Protocol):
    """The fleet, as far as stalls concern it."""

    def __iter__(self) -> Iterator[Worker]:
        """Iterate over all workers."""
        ...

    async def probe(self, worker: Worker) -> None:
        """Probe a worker once."""
        ...

    def stalled(self, worker: Worker, seconds: float) -> None:
        """Note that nothing has come from a worker for so long, while requests and a probe waited."""
        ...

    def is_dispensable(self, worker: Worker) -> bool:
        """Return whether other workers can serve what this one does not."""
        ...


@dataclass(slots=True)
class _Silence:
    """How long a worker with requests under way has been silent, and what was done about it."""

    worker: Worker
    adapter: SupportsStallDetection
    received: int
    seconds: float = 0.0
    probed: bool = False
    reported: bool = False


class StallDetector:
    """Looks at all workers with requests under way, several times a second."""

    def __init__(self, fleet: WatchedFleet) -> None:
        self._fleet = fleet
        self._silences: dict[WorkerId, _Silence] = {}
        self._probes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self.look()
        finally:
            for probe in self._probes:
                probe.cancel()

    def look(self) -> None:
        """Look at every worker once; call it LOOK_SECONDS after the last time, at least."""
        before, self._silences = self._silences, {}
        for worker in self._fleet:
            if not worker.load.streams or worker.provider is not None:
                continue
            silence = before.get(worker.id)
            if silence is None or silence.worker is not worker:
                if isinstance(worker.adapter, SupportsStallDetection):
                    self._silences[worker.id] = _Silence(worker, worker.adapter, worker.adapter.received)
                continue
            self._silences[worker.id] = silence
            received = silence.adapter.received
            if received != silence.received or not silence.adapter.awaited:
                silence.received, silence.seconds = received, 0.0
                silence.probed = silence.reported = False
            else:
                self._still_silent(silence)

    def _still_silent(self, silence: _Silence) -> None:
        worker = silence.worker
        silence.seconds += LOOK_SECONDS
        quiet = quiet_after_seconds(worker)
        if silence.seconds >= quiet and not silence.probed:
            silence.probed = True
            probe = asyncio.ensure_future(self._fleet.probe(worker))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)
        if silence.seconds >= quiet + PROBE_ANSWER_SECONDS_MAX and not silence.reported:
            silence.reported = True
            if worker.health.state is not Health.DOWN:
                self._fleet.stalled(worker, silence.seconds)
        if silence.seconds >= max(BROKEN_SECONDS, 2 * quiet) and self._fleet.is_dispensable(worker):
            silence.adapter.break_off()


def quiet_after_seconds(worker: Worker) -> float:
    """Return after how much silence a worker is probed, by its own pace."""
    speed = worker.speed
    prefill = predicted_ttft_ms(speed, worker.load.all_tokens_queued) / 1000
    return max(QUIET_SECONDS_MIN, QUIET_STEPS * speed.step_ms / 1000, min(prefill, PREFILL_SECONDS_MAX))
