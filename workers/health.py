"""Health of one worker as a table of moves: pure, so that it can be read and tested as a whole.

    from        answered    failed                          drained     resumed
    suspect     up          suspect; the third in a row: down   draining    -
    up          up          suspect                         draining    -
    down        up          down                            draining    -
    draining    -           -                               -           suspect

A worker starts as suspect. A suspect worker still serves: one lost connection is not an outage. A worker that
is down gets nothing but probes. An answer of any kind, a refusal included, proves that it lives; what a client
did wrong (4xx) is therefore never a failure.
"""

from dataclasses import dataclass, replace

from workers.worker import Health

FAILURES_MAX = 3


@dataclass(frozen=True, slots=True)
class HealthState:
    """`health` and the count of failures in a row that led to it."""

    health: Health = Health.SUSPECT
    failures: int = 0

    @property
    def routable(self) -> bool:
        """May new requests go there?"""
        return self.health in (Health.UP, Health.SUSPECT)

    def answered(self) -> "HealthState":
        """The worker gave an answer."""
        if self.health is Health.DRAINING:
            return self
        return HealthState(Health.UP, 0)

    def failed(self) -> "HealthState":
        """The worker could not be reached, hung up, or failed by its own fault."""
        if self.health is Health.DRAINING:
            return self
        failures = self.failures + 1
        return HealthState(Health.DOWN if failures >= FAILURES_MAX else Health.SUSPECT, failures)

    def drained(self) -> "HealthState":
        """The operator wants no more requests to go there."""
        return replace(self, health=Health.DRAINING)

    def resumed(self) -> "HealthState":
        """The operator takes draining back."""
        return HealthState() if self.health is Health.DRAINING else self
