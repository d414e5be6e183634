"""The reason for a request's wait in the queue, as text, and the requests that wait as it begins to."""

from operator import itemgetter

from gateway.dispatch.pending_request import PendingRequest
from gateway.dispatch.placement import Placement
from gateway.fleet.fleet import Fleet
from gateway.queueing.dispatch_windows import OwnDispatchWindows
from gateway.queueing.waiting_room import WaitingRoom
from gateway.telemetry.request_events import QueueWait
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.window_room import fits_window
from policies.queueing.protocol import Ticket

TENANTS_MAX = 10


def queue_wait(
    pending: PendingRequest,
    fleet: Fleet,
    room: WaitingRoom[Placement],
    window: OwnDispatchWindows,
    shared: bool,
) -> QueueWait:
    """Return why the request begins to wait. `shared`: all gateways share one order of turns."""
    ticket = pending.ticket
    assert ticket is not None
    ahead, tenants = room.waiting_beside(ticket)
    most_first = sorted(tenants.items(), key=itemgetter(1), reverse=True)
    is_narrow = window.is_narrow(room, ticket.tenant, background=pending.service_class.background)
    return QueueWait(
        reason=waiting_reason(fleet, room, ticket, ahead.requests, window.of(room.model), is_narrow, shared),
        requests_ahead=ahead.requests,
        tokens_ahead=ahead.tokens,
        tenants_ahead=tuple(most_first[:TENANTS_MAX]),
    )


def waiting_reason(
    fleet: Fleet,
    room: WaitingRoom[Placement],
    ticket: Ticket,
    ahead: int,
    window: DispatchWindow,
    is_narrow: bool,
    shared: bool,
) -> str:
    """Return why a request waits while so many requests came before it."""
    if not room.may_give_turns:
        return "others go before batch work"
    able = fleet.serving(room.model)
    if not able:
        return "no worker serves the model now"
    uncached_tokens = ticket.uncached_tokens
    patient = window.is_patient(ticket.target_seconds, is_narrow=is_narrow, work_share=ticket.work_share)
    tokens = {each.id: window.tokens(each.id, is_narrow=is_narrow, patient=patient) for each in able}
    taken = window.taken_by(uncached_tokens, is_narrow=is_narrow, patient=patient)
    if not any(fits_window(each.load.all_tokens_queued, taken, tokens[each.id]) for each in able):
        return "no worker has room for its prompt"
    if ahead:
        return f"{ahead} came before it" + (" at its gateway" if shared else "")
    if uncached_tokens > max(tokens.values()):
        return "its prompt is longer than the dispatch window, and a worker stays open for shorter ones"
    return "others go before it" if shared else "a better worker than those with room is worth the wait"
