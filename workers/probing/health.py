"""Health of one worker as a table of moves: pure, so that it can be read and tested as a whole.

    from        probe answered   began to answer   failed                            drained     resumed
    suspect     up               up                suspect; the third in a row: down draining    -
    up          up               up                suspect                           draining    -
    down        up               up                down                              draining    -
    open        open; on trial   open              open                              draining    -
    on trial    on trial         up                open, for twice as long           draining    -
    draining    -                -                 -                                 -           suspect

A worker starts as suspect. A suspect worker still serves: one lost connection is not an outage. A worker that
is down gets nothing but probes. An answer of any kind, a refusal included, proves that it lives; what a client
did wrong (4xx) is therefore never a failure.

Probes can be fine while requests fail; that is what the circuit is for (*open* shows as down, *on trial* as
suspect). A request that fails adds 1 to the worker's `strain`, and each one that ends takes a fifth of it away:
three failures in a row are too much, and so is about half of many. The circuit is open for OPEN_SECONDS then, and
after them the worker is on trial: it is given one request at a time, until it has begun to answer one. A probe that
fails closes the circuit: the worker is simply down, and back when a probe is answered.
"""

from dataclasses import dataclass, replace

from workers.worker import Health

FAILURES_MAX = 3
"""In a row, of probes and requests together: after these it is down."""

STRAIN_KEPT = 0.8
STRAIN_MAX = 2.4
"""Three failures in a row make 2.44."""

STRAIN_ON_TRIAL = 1.8
"""One more failure is too much."""

STRAIN_OVER = 0.5
OPEN_SECONDS = 5.0
OPEN_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class HealthState:
    """`failures`: in a row. `strain`: of its requests; see above. `trial`: it may have one request at a time.

    `open_until`: the circuit is open until then at least, on the clock that gives `now`; None: it is closed.
    `openings`: how often it was opened since its requests fared well.
    """

    health: Health = Health.SUSPECT
    failures: int = 0
    strain: float = 0.0
    trial: bool = False
    open_until: float | None = None
    openings: int = 0

    @property
    def routable(self) -> bool:
        """May new requests go there?"""
        return self.health in (Health.UP, Health.SUSPECT)

    @property
    def open(self) -> bool:
        """Is it down for its requests alone, while its probes are fine?"""
        return self.open_until is not None

    def probed(self, now: float) -> "HealthState":
        """A probe was answered."""
        if self.health is Health.DRAINING or self.trial:
            return self
        if self.open_until is None:
            return replace(self, health=Health.UP, failures=0)
        if now < self.open_until:
            return self
        return replace(
            self, health=Health.SUSPECT, failures=0, strain=STRAIN_ON_TRIAL, trial=True, open_until=None
        )

    def probe_failed(self) -> "HealthState":
        """A probe was not."""
        if self.health is Health.DRAINING:
            return self
        strain = min(self.strain, STRAIN_ON_TRIAL)
        return replace(self._failed(), strain=strain, trial=False, open_until=None)

    def answered(self) -> "HealthState":
        """It began to answer a request; any answer counts, also a refusal."""
        if self.health is Health.DRAINING or self.open_until is not None:
            return self
        return replace(self, health=Health.UP, failures=0, trial=False)

    def ended(self) -> "HealthState":
        """An answer came to its end."""
        if not self.strain:
            return self
        strain = self.strain * STRAIN_KEPT
        return (
            replace(self, strain=strain) if strain >= STRAIN_OVER else replace(self, strain=0.0, openings=0)
        )

    def failed(self, now: float) -> "HealthState":
        """A request could not reach it, was hung up on, before its answer or within, or failed by its fault."""
        if self.health is Health.DRAINING or self.open_until is not None:
            return self
        strain = self.strain * STRAIN_KEPT + 1
        if strain <= STRAIN_MAX:
            return replace(self._failed(), strain=strain)
        seconds = min(OPEN_SECONDS * 2.0**self.openings, OPEN_SECONDS_MAX)
        return HealthState(
            Health.DOWN, strain=strain, open_until=now + seconds, openings=min(self.openings + 1, 10)
        )

    def drained(self) -> "HealthState":
        """The operator wants no more requests to go there."""
        return HealthState(Health.DRAINING)

    def resumed(self) -> "HealthState":
        """The operator takes draining back."""
        return HealthState() if self.health is Health.DRAINING else self

    def _failed(self) -> "HealthState":
        failures = self.failures + 1
        down = failures >= FAILURES_MAX or self.health is Health.DOWN
        return replace(self, health=Health.DOWN if down else Health.SUSPECT, failures=failures)
