"""The health of one worker, with its circuit breaker, as one state machine: a pure table of transitions.

    from       probe answered    answer began   probe failed              request failed
    suspect    up                up             suspect; the third: down  suspect; the third: down; too many: open
    up         up                up             suspect                   suspect; too many: open
    down       up                up             down                      down; too many: open
    open       open; on trial    open           down                      open
    on trial   on trial; up      up             suspect                   open, for twice as long
    draining   draining          draining       draining                  draining

"The third" counts failures in a row of probes and requests together; "too many" counts failed requests, below.

A worker of any state is moved to draining, and from there to suspect, by an operator or by Discovery: no source
reports the worker any more, or its settings have changed (gateway/discovery/discovery.py). A worker that has
stalled (gateway/fleet/stalls.py) is down at once, unless it is draining. Fleet._move applies the new state.

A worker starts as suspect. A suspect worker still serves: one lost connection is not an outage. A worker that is
down gets nothing but probes, and so does one with an open circuit, unless its model has no other worker (`serving`
of worker_lookup.py). An answer of any kind, a refusal included, proves that the worker runs; an error of the
client (4xx) is therefore never a failure.

Probes can be answered while requests fail: for this there is a circuit breaker (*open* shows as down, *on trial* as
suspect). A request that fails adds 1 to the worker's `strain`, and each request that ends takes a fifth of it away:
three failed requests in a row open the circuit, and so do failures of about half of many requests. The circuit is
open for OPEN_SECONDS; the first probe that is answered after that puts the worker on trial: it is given one request
at a time (`able` of worker.py), until it has begun to answer one. A probe that fails closes the circuit: probes
alone decide then. A worker that has been on trial for TRIAL_SECONDS and has no request is up, since routing may
never send the request that would end the trial: it prefers other workers for as long as this one's learnt speed is
slow.
"""

from dataclasses import dataclass, replace

from workers.worker import Health

FAILURES_MAX = 3
"""Failures in a row, of probes and requests together, after which a worker is down."""

STRAIN_KEPT = 0.8
"""Share of the strain that is left after one more request."""

STRAIN_MAX = 2.4
"""Strain above which the circuit opens: three failures in a row make 2.44."""

STRAIN_ON_TRIAL = 1.8
"""Strain of a worker on trial: one more failure opens the circuit again."""

STRAIN_OVER = 0.5
"""Strain below which past failures no longer count."""

OPEN_SECONDS = 5.0
OPEN_SECONDS_MAX = 60.0
"""How long the circuit is open at first, and at most; it doubles with every opening."""


TRIAL_SECONDS = 10.0
"""How long a worker without requests stays on trial."""


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The health of a worker: its state, and what decides the next one; every event returns a new value."""

    state: Health = Health.SUSPECT
    failures: int = 0
    """Failures in a row, of probes and requests."""
    strain: float = 0.0
    """Recent failures of requests, fading; see the top of this file."""
    on_trial: bool = False
    """Whether the worker may have only one request at a time, after its circuit was open."""
    trial_until: float = 0.0
    """A trial without requests ends then."""
    open_until: float | None = None
    """The circuit is open until then at least, on the clock that gives `now`; None: it is closed."""
    openings: int = 0
    """How often the circuit was opened since requests last succeeded."""

    @property
    def routable(self) -> bool:
        """Whether new requests may be sent to the worker: it is up or suspect. See also `Worker.able`."""
        return self.state in (Health.UP, Health.SUSPECT)

    @property
    def circuit_open(self) -> bool:
        """Whether the worker is down because its requests fail while its probes are answered."""
        return self.open_until is not None

    def probe_answered(self, now: float, *, idle: bool = False) -> "WorkerHealth":
        """Return the state after an answered probe; `idle`: the worker has no requests of this gateway."""
        if self.state is Health.DRAINING:
            return self
        if self.on_trial:
            over = idle and now >= self.trial_until
            return replace(self, state=Health.UP, failures=0, on_trial=False) if over else self
        if self.open_until is None:
            return replace(self, state=Health.UP, failures=0)
        if now < self.open_until:
            return self
        return replace(
            self,
            state=Health.SUSPECT,
            failures=0,
            strain=STRAIN_ON_TRIAL,
            on_trial=True,
            trial_until=now + TRIAL_SECONDS,
            open_until=None,
        )

    def probe_failed(self) -> "WorkerHealth":
        """Return the state after a probe that was not answered."""
        if self.state is Health.DRAINING:
            return self
        strain = min(self.strain, STRAIN_ON_TRIAL)
        return replace(self._failed(), strain=strain, on_trial=False, open_until=None)

    def answer_began(self) -> "WorkerHealth":
        """Return the state after the worker began to answer a request; any answer counts, also a refusal."""
        if self.state is Health.DRAINING or self.open_until is not None:
            return self
        return replace(self, state=Health.UP, failures=0, on_trial=False)

    def answer_ended(self) -> "WorkerHealth":
        """Return the state after an answer came to its end."""
        if not self.strain:
            return self
        strain = self.strain * STRAIN_KEPT
        return (
            replace(self, strain=strain) if strain >= STRAIN_OVER else replace(self, strain=0.0, openings=0)
        )

    def request_failed(self, now: float) -> "WorkerHealth":
        """Return the state after a request that failed by the worker's fault.

        It could not be sent, its connection broke before or within the answer, or the worker answered with a server
        error where another worker answered the same request.
        """
        if self.state is Health.DRAINING or self.open_until is not None:
            return self
        strain = self.strain * STRAIN_KEPT + 1
        if strain <= STRAIN_MAX and not self.on_trial:
            return replace(self._failed(), strain=strain)
        seconds = min(OPEN_SECONDS * 2.0**self.openings, OPEN_SECONDS_MAX)
        return WorkerHealth(
            Health.DOWN, strain=strain, open_until=now + seconds, openings=min(self.openings + 1, 10)
        )

    def stalled(self) -> "WorkerHealth":
        """Return the state after the worker was silent while probes and requests waited: it is down at once."""
        if self.state is Health.DRAINING:
            return self
        return replace(self, state=Health.DOWN, failures=FAILURES_MAX, on_trial=False, open_until=None)

    def drained(self) -> "WorkerHealth":
        """Return the state of a worker that gets no more requests: it leaves, or an operator asked for it."""
        return WorkerHealth(Health.DRAINING)

    def resumed(self) -> "WorkerHealth":
        """Return the state after the draining was ended."""
        return WorkerHealth() if self.state is Health.DRAINING else self

    def _failed(self) -> "WorkerHealth":
        failures = self.failures + 1
        down = failures >= FAILURES_MAX or self.state is Health.DOWN
        return replace(self, state=Health.DOWN if down else Health.SUSPECT, failures=failures)
