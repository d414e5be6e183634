"""Which two gateways follow the KV events of each worker: leases in Redis, by the server's clock.

    gateways   id -> deadline      a gateway that is not heard of for so long has no lease any more
    leases     worker -> lease     who writes to the index, who follows warm and would write next, what is known
    version                        of both: it grows with every change, so that who knows it need not read them

One call a renewal, for all workers and feeds; what it costs grows with the changes, not with the workers. A change
of a lease names the lease as it was, and is refused if it is not that any more: this and the version fence whoever
believes that he still has it.
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
CHANGES_PER_CALL_MAX = 256

_LEASE = Struct("<8s8sBB")


class FeedKnowledge(IntFlag):
    """What the writer knows of a worker from its events, for those who do not follow it."""

    NOTHING = 0
    WHOLE = 1
    """All that it holds is known from its own words: no answer has to confirm it."""
    UNCERTAIN = 2
    """Some of its words were missed: it may hold less than is known, or more."""
    HYBRID = 4
    """It may hold a prefix and not be able to use it."""


@dataclass(frozen=True, slots=True)
class FeedLease:
    """Ids of gateways, NOBODY where there is none. `losses`: counts what was missed for good, modulo 256."""

    writer: bytes = NO_GATEWAY
    second: bytes = NO_GATEWAY
    known: FeedKnowledge = FeedKnowledge.NOTHING
    losses: int = 0

    def packed(self) -> bytes:
        """Empty if nobody has it."""
        if self.writer == self.second == NO_GATEWAY:
            return b""
        return _LEASE.pack(self.writer, self.second, self.known, self.losses)

    @classmethod
    def unpack(cls, data: bytes) -> "FeedLease":
        writer, second, known, losses = _LEASE.unpack(data)
        return cls(writer, second, FeedKnowledge(known), losses)


@dataclass(frozen=True, slots=True)
class FeedLeaseTable:
    """As of one version. `gateways`: ids of all that live."""

    version: int = 0
    gateways: frozenset[bytes] = frozenset()
    leases: Mapping[WorkerId, FeedLease] = field(default_factory=dict)

    def of(self, worker: WorkerId) -> FeedLease:
        return self.leases.get(worker, _NONE)


@dataclass(frozen=True, slots=True)
class FeedLeaseChange:
    worker: WorkerId
    known: FeedLease
    wanted: FeedLease


class FeedLeaseStore:
    """`identity`: the gateway's, eight bytes that no other has."""

    def __init__(self, scripts: ScriptCaller, keys: Keys, identity: bytes) -> None:
        self.identity = identity
        self._scripts = scripts
        self._keys = keys.feed_leases

    async def renew(
        self, table: FeedLeaseTable, milliseconds: int, changes: Iterable[FeedLeaseChange] = ()
    ) -> FeedLeaseTable:
        """The gateway lives on for so long (0: it leaves); the table as it is then. Raises RedisDown.

        At most CHANGES_PER_CALL_MAX changes. Those that came too late show in the table.
        """
        wanted: list[CommandArgument] = []
        for change in changes:
            wanted += [change.worker, change.known.packed(), change.wanted.packed()]
        call: asyncio.Future[Any] = self._scripts.call(
            FEED_LEASES, self._keys, [self.identity, milliseconds, table.version, *wanted]
        )
        answer = await call
        if len(answer) == 1:
            return table
        version, gateways, leases = answer
        return FeedLeaseTable(
            version=version,
            gateways=frozenset(gateways),
            leases={
                WorkerId(worker.decode()): FeedLease.unpack(lease)
                for worker, lease in zip(leases[::2], leases[1::2], strict=True)
            },
        )


_NONE = FeedLease()
