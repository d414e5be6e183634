"""Who should follow whose feed. Pure: the leases as they are in, the leases as one gateway would have them out.

Every worker ranks all gateways by the hash of both (rendezvous hashing, Thaler and Ravishankar 1998): so writers
are spread evenly, all agree without asking, and a gateway that comes or goes moves only what was its own.

    nobody writes       the warm second does; without one, the first of the ranking
    nobody is second    the first of the ranking that does not write
    a better second     takes the place of the second, and listens until it is warm
    a better writer     is second by then, and swaps with the writer once it knows as much

Whoever ranks lower waits longer before he takes what is free: whom the ranking prefers may not know the worker.
Who cannot reach what the worker publishes (`deaf`: another zone, a policy of the network) leaves it to others, and
takes only what nobody else wants.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from xxhash import xxh3_64_intdigest

from radix_cache.match import WorkerId
from radix_cache.shared.feed_leases import NO_GATEWAY, FeedKnowledge, FeedLease

PATIENCE_MAX = 5
DEAF_PATIENCE = 10
"""So many rounds later than all others."""

SETTLED_ROUNDS = 3
"""So long a lease has to be somebody's before somebody better asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus:
    """What a gateway can do for a worker. `wanted`: follow it at all; `warm`: what was before has been heard.

    `follows`: it does already. `deaf`: it has tried, and reached nobody. `known`, `losses`: as a lease has them, by
    its own follower.
    """

    wanted: bool
    follows: bool = False
    deaf: bool = False
    warm: bool = False
    known: FeedKnowledge = FeedKnowledge.NOTHING
    losses: int = 0


def _knows_enough(stand: FollowerStatus, lease: FeedLease) -> bool:
    """Would nothing be forgotten if it wrote?"""
    return stand.warm and bool(stand.known & FeedKnowledge.WHOLE or not lease.known & FeedKnowledge.WHOLE)


@lru_cache(maxsize=4096)
def ranking(worker: WorkerId, gateways: frozenset[bytes]) -> tuple[bytes, ...]:
    """The gateways, the one that suits the worker best first."""
    name = worker.encode()
    return tuple(sorted(gateways, key=lambda gateway: xxh3_64_intdigest(name + gateway), reverse=True))


def claim(
    worker: WorkerId, lease: FeedLease, gateways: frozenset[bytes], me: bytes, stand: FollowerStatus, rounds: int
) -> FeedLease:
    """The lease as `me` would have it. `rounds`: for so many it has been as it is."""
    writer = lease.writer if lease.writer in gateways else NO_GATEWAY
    second = lease.second if lease.second in gateways else NO_GATEWAY
    if not stand.wanted or (stand.deaf and stand.follows and len(gateways) > 1):
        writer = NO_GATEWAY if writer == me else writer
        second = NO_GATEWAY if second == me else second
        ours = me in (lease.writer, lease.second)
        return replace(lease, writer=writer, second=second) if ours else lease
    if me not in gateways or (writer == NO_GATEWAY and second not in (NO_GATEWAY, me)):
        return lease  # Missed ourselves; or the second will take over in a moment.
    order = ranking(worker, gateways)
    patience = PATIENCE_MAX if stand.follows else rounds - DEAF_PATIENCE if stand.deaf else rounds
    if writer == NO_GATEWAY:
        if second == me or order.index(me) <= patience:
            writer, second = me, NO_GATEWAY if second == me else second
    elif writer != me:
        others = [gateway for gateway in order if gateway != writer]
        at = min(others.index(me), PATIENCE_MAX)
        if second == NO_GATEWAY:
            second = me if at <= patience else second
        elif second != me and at == 0 and not stand.deaf and rounds >= SETTLED_ROUNDS:
            second = me
        elif second == me and order[0] == me and rounds >= SETTLED_ROUNDS and _knows_enough(stand, lease):
            writer, second = me, writer
    if writer == me and (stand.warm or lease.writer != me):
        return FeedLease(writer, second, stand.known, stand.losses)
    return replace(lease, writer=writer, second=second)
