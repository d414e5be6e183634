"""Leases in Redis that give the KV events of each worker to two gateways, timed by the server's clock.

    gateways   id -> deadline      a gateway that does not renew in time loses all its leases; the id of a process
                                   that follows no worker has FOLLOWS_NONE behind it
    leases     worker -> lease     the gateway that writes to the index, the warm standby, how complete events are
    version                        of both: it grows with every change, so that unchanged tables are not sent again

One call renews the leases of all workers and feeds; its cost grows with the changes, not with the workers. A change
of a lease contains the lease as last read, and is refused if the lease has changed since. This check and the
version fence off a gateway that no longer has the lease but still acts as if it had.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from struct import Struct
from typing import Any

from radix_cache.match import WorkerId
from radix_cache.redis.call import CommandArgument, Script
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys

FEED_LEASES = Script.from_file("radix_cache.shared", "feed_leases")

NO_GATEWAY = bytes(8)
FOLLOWS_NONE = b"-"
CHANGES_PER_CALL_MAX = 256

_LEASE = Struct("<8s8sBB")


class FeedState(IntFlag):
    """How complete a worker's events are at the writer, for the gateways that do not follow the worker."""

    NOTHING = 0
    WHOLE = 1
    """Everything that the worker holds is known from its events, so answers need not confirm it."""
    UNCERTAIN = 2
    """Some events were missed, so the worker may hold less or more than is known."""
    HYBRID = 4
    """The worker may hold a prefix that it cannot use."""


@dataclass(frozen=True, slots=True)
class FeedLease:
    """The lease of one worker's events."""

    writer: bytes = NO_GATEWAY
    """The id of the gateway that writes the events to the index; NO_GATEWAY for none."""
    second: bytes = NO_GATEWAY
    """The id of the standby, which follows the events too and writes next; NO_GATEWAY for none."""
    known: FeedState = FeedState.NOTHING
    losses: int = 0
    """How often events were lost for good, modulo 256."""

    def packed(self) -> bytes:
        """Return the lease as stored in Redis; empty if no gateway has it."""
        if self.writer == self.second == NO_GATEWAY:
            return b""
        return _LEASE.pack(self.writer, self.second, self.known, self.losses)

    @classmethod
    def unpack(cls, data: bytes) -> "FeedLease":
        """Return the lease for which `packed` returned these bytes."""
        writer, second, known, losses = _LEASE.unpack(data)
        return cls(writer, second, FeedState(known), losses)


@dataclass(frozen=True, slots=True)
class FeedLeaseTable:
    """All leases, as of one version."""

    version: int = 0
    gateways: frozenset[bytes] = frozenset()
    """The ids of all live gateways that may follow workers."""
    leases: Mapping[WorkerId, FeedLease] = field(default_factory=dict)

    def of(self, worker: WorkerId) -> FeedLease:
        """Return the lease of a worker; one without gateways if there is none."""
        return self.leases.get(worker, _NO_LEASE)


@dataclass(frozen=True, slots=True)
class FeedLeaseChange:
    """A change of a worker's lease, which applies only if the lease is still `known`."""

    worker: WorkerId
    known: FeedLease
    wanted: FeedLease


class FeedLeaseStore:
    """The leases in Redis, as one gateway renews them.

    Args:
        scripts: The server of the leases.
        keys: The names of their keys.
        identity: Eight bytes that are unique to the gateway.
        follows: Whether the gateway may follow workers; otherwise it is only listed as live.
    """

    def __init__(self, scripts: ScriptCaller, keys: Keys, identity: bytes, *, follows: bool = True) -> None:
        self.identity = identity
        self._member = identity if follows else identity + FOLLOWS_NONE
        self._scripts = scripts
        self._keys = keys.feed_leases

    async def renew(
        self, table: FeedLeaseTable, milliseconds: int, changes: Iterable[FeedLeaseChange] = ()
    ) -> FeedLeaseTable:
        """Renew the gateway's leases, change some, and return the table as it is then. Raises RedisDown.

        Args:
            table: The table as last read.
            milliseconds: How long the gateway counts as live from now on; 0 when it leaves.
            changes: At most CHANGES_PER_CALL_MAX. Changes that came too late show in the returned table.
        """
        wanted: list[CommandArgument] = []
        for change in changes:
            wanted += [change.worker, change.known.packed(), change.wanted.packed()]
        call: asyncio.Future[Any] = self._scripts.call(
            FEED_LEASES, self._keys, [self._member, milliseconds, table.version, *wanted]
        )
        answer = await call
        if len(answer) == 1:
            return table
        version, gateways, leases = answer
        return FeedLeaseTable(
            version=version,
            gateways=frozenset(each for each in gateways if len(each) == len(NO_GATEWAY)),
            leases={
                WorkerId(worker.decode()): FeedLease.unpack(lease)
                for worker, lease in zip(leases[::2], leases[1::2], strict=True)
            },
        )


_NO_LEASE = FeedLease()
