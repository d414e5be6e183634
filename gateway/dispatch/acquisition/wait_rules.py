"""The rules that end a request's wait in the queue before the bound of its waiting room does.

    the timeout that its client asked for                       ClientTimeoutPassed
    the TTFT target of its class, if late requests do not wait  TargetMissed, or it becomes batch work
    shedding from a standing queue, if its class sheds          AdmissionTimeout
    a provider takes what has waited so long                    it goes to the provider

The soonest of them counts. The bound of the room is the setting waiting_seconds_max; `_until_wait_ends` of
gateway/queueing/waiting_room.py ends the wait.
"""

from collections.abc import Callable
from typing import Any

from gateway.dispatch.acquisition.provider_overflow import OverflowDue, ProviderOverflow
from gateway.dispatch.acquisition.ttft_target import Demoted, target_at
from gateway.dispatch.pending_request import PendingRequest
from gateway.domain.errors import AdmissionTimeout, ClientTimeoutPassed, TargetMissed
from gateway.queueing.room_rules import WaitEnd
from gateway.queueing.waiting_room import WaitingRoom
from policies.admission.waiting_bounds import shed_after_seconds
from policies.queueing.protocol import Ticket


class WaitRules:
    """Decides when a request stops waiting in the queue. `clock`: seconds on the monotonic clock."""

    def __init__(self, overflow: ProviderOverflow, clock: Callable[[], float]) -> None:
        self._overflow = overflow
        self._clock = clock

    def soonest_end(self, pending: PendingRequest, room: WaitingRoom[Any], ticket: Ticket) -> WaitEnd | None:
        """Return what ends the request's wait sooner than the bound of its waiting room; None: nothing does."""
        service_class, expires_at = pending.service_class, pending.ctx.expires_at
        ends: list[WaitEnd] = []
        if expires_at is not None:
            ends.append(WaitEnd(expires_at, lambda _: ClientTimeoutPassed()))
        if service_class.late == "reject":
            ends.append(WaitEnd(target_at(pending), lambda retry: TargetMissed(service_class.name, retry)))
        if service_class.late == "demote":
            ends.append(WaitEnd(target_at(pending), lambda _: Demoted()))
        if service_class.sheds:
            since = room.standing_since(service_class.name)
            standing = self._clock() - since if since is not None else 0.0
            seconds = shed_after_seconds(service_class.ttft_seconds, standing)
            ends.append(WaitEnd(ticket.arrived_at + seconds, lambda retry: AdmissionTimeout(seconds, retry)))
        if not service_class.background:
            overflows_at = self._overflow.overflows_at(pending, ticket.arrived_at, pending.failed_workers)
            if overflows_at is not None:
                ends.append(WaitEnd(overflows_at, lambda _: OverflowDue()))
        return min(ends, key=lambda end: end.until, default=None)
