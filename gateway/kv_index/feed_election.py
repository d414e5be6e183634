"""Elects the two gateways that follow a worker's KV events: computes the wanted lease from a lease, without I/O.

For every worker all gateways are ranked by a hash of worker and gateway (rendezvous hashing, Thaler and Ravishankar
1998). So writers are spread evenly, all gateways agree without communicating, and a gateway that joins or leaves
moves only its own leases.

A lease names two gateways. The writer follows the worker's events and writes them to the index. The second follows
them, too, and takes over when the writer dies; it is warm once the replay of earlier events is done.

    no writer                               a warm second becomes the writer; without one, the first of the ranking
    no second                               the first of the ranking, without the writer, becomes the second
    the second is not the best-ranked       a better-ranked gateway replaces it
    the writer is not the best-ranked       the best-ranked gateway becomes the second, and swaps roles with the
                                            writer once its record is as complete

Each gateway looks at a lease once in a round.
A gateway of a lower rank waits longer before it takes a free role, because a preferred gateway may not have found
the worker yet. A gateway that cannot reach the worker's publisher (another zone, a network policy) leaves the roles
to others, and takes only those that stay free.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from xxhash import xxh3_64_intdigest

from radix_cache.match import WorkerId
from radix_cache.shared.feed_lease_store import NO_GATEWAY, FeedLease, FeedState

PATIENCE_MAX = 5
"""The most rounds that a gateway waits because of its rank."""
UNREACHABLE_PATIENCE = 10
"""How many rounds after all others a gateway takes a role if it cannot reach the publisher."""

STABLE_ROUNDS = 3
"""How many rounds a lease has to be unchanged before a better-ranked gateway claims it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus:
    """What a gateway can do for a worker."""

    wanted: bool
    """Whether the worker is in the gateway's fleet and publishes KV events."""
    follows: bool = False
    """Whether the gateway follows the worker already."""
    unreachable: bool = False
    """Whether the gateway could not reach the worker's publisher."""
    warm: bool = False
    """Whether the replay of earlier events is done."""
    known: FeedState = FeedState.NOTHING
    """How complete the record of the gateway's own follower is."""
    losses: int = 0
    """How often the gateway's own follower has lost events for good, modulo 256."""


def _knows_enough(status: FollowerStatus, lease: FeedLease) -> bool:
    """Return whether this gateway's record of the worker is at least as complete as the writer's."""
    return status.warm and bool(status.known & FeedState.WHOLE or not lease.known & FeedState.WHOLE)


@lru_cache(maxsize=4096)
def ranking(worker: WorkerId, gateways: frozenset[bytes]) -> tuple[bytes, ...]:
    """Return all gateways in the order in which the worker prefers them."""
    name = worker.encode()
    return tuple(sorted(gateways, key=lambda gateway: xxh3_64_intdigest(name + gateway), reverse=True))


def _rank_max(status: FollowerStatus, rounds: int) -> int:
    """Return the lowest rank with which the gateway may take a free role after so many rounds."""
    if status.follows:
        return PATIENCE_MAX
    return rounds - UNREACHABLE_PATIENCE if status.unreachable else rounds


def claim(
    worker: WorkerId,
    lease: FeedLease,
    gateways: frozenset[bytes],
    own_id: bytes,
    status: FollowerStatus,
    rounds: int,
) -> FeedLease:
    """Return the lease as the gateway `own_id` would have it; `rounds` counts the rounds since its last change."""
    writer = lease.writer if lease.writer in gateways else NO_GATEWAY
    second = lease.second if lease.second in gateways else NO_GATEWAY
    if not status.wanted or (status.unreachable and status.follows and len(gateways) > 1):
        writer = NO_GATEWAY if writer == own_id else writer
        second = NO_GATEWAY if second == own_id else second
        is_member = own_id in (lease.writer, lease.second)
        return replace(lease, writer=writer, second=second) if is_member else lease
    if own_id not in gateways or (writer == NO_GATEWAY and second not in (NO_GATEWAY, own_id)):
        return lease  # This gateway's own lease has expired, or the second is about to take over.
    order = ranking(worker, gateways)
    rank_max = _rank_max(status, rounds)
    if writer == NO_GATEWAY:
        if second == own_id or order.index(own_id) <= rank_max:
            writer, second = own_id, NO_GATEWAY if second == own_id else second
    elif writer != own_id:
        others = [gateway for gateway in order if gateway != writer]
        rank = min(others.index(own_id), PATIENCE_MAX)
        if second == NO_GATEWAY:
            second = own_id if rank <= rank_max else second
        elif second != own_id and rank == 0 and not status.unreachable and rounds >= STABLE_ROUNDS:
            second = own_id
        elif (
            second == own_id
            and order[0] == own_id
            and rounds >= STABLE_ROUNDS
            and _knows_enough(status, lease)
        ):
            writer, second = own_id, writer
    if writer == own_id and (status.warm or lease.writer != own_id):
        return FeedLease(writer, second, status.known, status.losses)
    return replace(lease, writer=writer, second=second)
