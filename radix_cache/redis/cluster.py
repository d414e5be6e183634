"""A Redis Cluster: every call goes to the primary that has its slot, and follows the slot when that moves.

    well    calls of the slot go out as they come, many under way at one time
      |  one comes back unserved: moved, asking, try again, cluster down, loading, connection lost
      v
    stuck   the slot's calls are held; those under way come back first. Then the first goes out alone, with pauses,
            until it is served; the others follow in their order.

So the calls of one slot stay in their order. One case is left: a call that was under way already is served, while
an earlier one for the same key was not. The earlier one fails then; it would come too late. After RETRY_SECONDS_MAX
without success all that is held fails, and from then on each call gets one attempt, until one succeeds.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

import hiredis

from radix_cache.redis.call import Argument, Call, RedisDown
from radix_cache.redis.line import Address, LineLost, Reply
from radix_cache.redis.server import Server
from radix_cache.redis.topology import SLOTS, Place, Redirect, owners, redirect, slot_of

log = logging.getLogger(__name__)

RETRY_SECONDS_MAX = 2.0
PAUSE_SECONDS = 0.02
PAUSE_SECONDS_MAX = 0.2
REDIRECTS_AT_ONCE_MAX = 3
REFRESH_SECONDS_MIN = 0.1
REFRESH_SECONDS_MAX = 0.7
ANYWHERE = -1
"""The slot of calls that have no key."""

UNSERVED = ("TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "NOSCRIPT")
"""What a server says that may soon be otherwise."""


@dataclass(slots=True, eq=False)
class _Stuck:
    """`again`: came back unserved, with where each should go if the server said so. `held`: not sent yet.

    `rounds`: how often the first was tried since one was last served. `trying`: it is under way now, alone.
    """

    again: deque[tuple[Call, Server | None]] = field(default_factory=deque)
    held: deque[Call] = field(default_factory=deque)
    why: str = ""
    rounds: int = 0
    trying: Call | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Slot:
    """`server`: where the calls under way went. `until`: when patience ends; 0 while all is well."""

    number: int
    under_way: int = 0
    server: Server | None = None
    until: float = 0.0
    stuck: _Stuck | None = None


class _Primary(Server):
    """A server that hands back what it was asked, served or not."""

    def __init__(self, address: Address, cluster: "Cluster") -> None:
        super().__init__(address)
        self._cluster = cluster

    def _answered(self, call: Call, reply: Reply | LineLost) -> None:
        self._under_way -= 1
        self._cluster.answered(self, call, reply)

    def _unreachable(self, call: Call, why: str) -> None:
        self._cluster.answered(self, call, LineLost(why))


class Cluster:
    """`seeds`: some of its servers, to ask for the others. Everything is connected when it is needed."""

    def __init__(self, seeds: list[Address]) -> None:
        self._seeds = seeds
        self._servers: dict[Place, _Primary] = {}
        self._owners: list[_Primary | None] = [None] * SLOTS
        self._slots: dict[int, _Slot] = {}
        self._stuck: set[_Slot] = set()
        self._waiting = 0
        self._numbers = count()
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed = asyncio.Event()
        self._refreshed_at = float("-inf")
        self._trouble = "no server of the cluster answers"
        self._closed = False

    @property
    def calls(self) -> int:
        """How many wait, or are under way."""
        return self._waiting + sum(server.calls for server in self._servers.values())

    def has_room(self, call: Call, most: int) -> bool:
        """Each server's calls are bounded, and those of all stuck slots: who is away does not stop the others."""
        slot = self._slot(call)
        owner = self._owner(slot)
        return self._waiting < most if slot.stuck is not None or owner is None else owner.calls < most

    def send(self, call: Call) -> None:
        slot = self._slot(call)
        owner = self._owner(slot)
        call.number = next(self._numbers)
        if slot.stuck is None and owner is not None and (slot.server is owner or not slot.under_way):
            self._go(slot, owner, call)
            return
        stuck = self._stick(slot)
        stuck.held.append(call)
        self._waiting += 1
        if not slot.under_way and stuck.timer is None:
            self._try(slot)

    async def whereabouts(
        self, channels: Iterable[bytes], *, anew: bool = False
    ) -> list[tuple[Address, list[bytes]]]:
        """Who has which channels; those that nobody has are left out. Raises RedisDown if nothing is known."""
        if self._closed:
            raise RedisDown("closed")
        if anew or not self._servers:
            self._refresh()
            self._refreshed.clear()
            await self._refreshed.wait()
        found: dict[Server, list[bytes]] = {}
        for channel in channels:
            owner = self._owners[slot_of(channel)]
            if owner is not None:
                found.setdefault(owner, []).append(channel)
        if not found:
            raise RedisDown(self._trouble)
        return [(server.address, theirs) for server, theirs in found.items()]

    async def close(self) -> None:
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        self._refreshed.set()
        for server in list(self._servers.values()):
            await server.close()
        for slot in list(self._stuck):
            self._fail_stuck(slot, "closed")

    # From the servers.

    def answered(self, server: Server, call: Call, reply: Reply | LineLost) -> None:
        """In the order in which the server was asked."""
        slot = self._slot(call)
        slot.under_way -= 1
        call.asking = False
        if not isinstance(reply, LineLost | hiredis.ReplyError):
            call.succeed(reply)
            self._served(slot, call)
        elif self._closed:
            call.fail(reply)
        elif isinstance(reply, LineLost):
            self._refresh()
            self._unserved(slot, call, str(reply), None, at_once=False)
        else:
            self._refused(slot, server, call, str(reply))
        if slot.stuck is not None and not slot.under_way and slot.stuck.timer is None:
            self._try(slot)

    def _refused(self, slot: _Slot, server: Server, call: Call, error: str) -> None:
        told = redirect(error, server.address.host)
        if told is not None:
            self._redirected(slot, call, error, told)
        elif error.startswith(UNSERVED):
            if error.startswith("NOSCRIPT"):
                server.forget(call)
                self._unserved(slot, call, error, None, at_once=True)
                return
            if not error.startswith("TRYAGAIN"):
                self._refresh()
            self._unserved(slot, call, error, None, at_once=False)
        else:
            call.fail(error)
            self._served(slot, call)

    def _redirected(self, slot: _Slot, call: Call, error: str, told: Redirect) -> None:
        target = self._server(told.place)
        if not told.asking:
            self._owners[told.slot] = target
            self._refresh()
        self._unserved(slot, call, error, target if told.asking else None, at_once=True)

    def _served(self, slot: _Slot, call: Call) -> None:
        slot.until = 0.0
        stuck = slot.stuck
        if stuck is None:
            return
        stuck.rounds = 0
        if stuck.trying is not call:
            self._fail_overtaken(stuck, call)
            return
        stuck.trying = None
        # Where one was served the next ones go too, except for those that were sent to ask elsewhere.
        owner = self._owner(slot)
        while owner is not None and stuck.again and stuck.again[0][1] is None:
            self._waiting -= 1
            self._go(slot, owner, stuck.again.popleft()[0])
        if owner is None or stuck.again:
            return
        while stuck.held:
            self._waiting -= 1
            self._go(slot, owner, stuck.held.popleft())
        self._unstick(slot)

    def _unserved(self, slot: _Slot, call: Call, why: str, where: Server | None, *, at_once: bool) -> None:
        """It goes again after those that came back before it, before those that were never sent."""
        now = asyncio.get_running_loop().time()
        if not slot.until:
            slot.until = now + RETRY_SECONDS_MAX
        stuck = self._stick(slot)
        if stuck.trying is call:
            stuck.trying = None
        at_once = at_once and stuck.rounds < REDIRECTS_AT_ONCE_MAX
        if now >= slot.until and not at_once:
            call.fail(why)
            self._fail_stuck(slot, why)
            return
        stuck.why = why
        place = len(stuck.again)
        while place and stuck.again[place - 1][0].number > call.number:
            place -= 1
        stuck.again.insert(place, (call, where))
        self._waiting += 1
        if not at_once and stuck.timer is None:
            longer = min(PAUSE_SECONDS * 1.3 ** min(stuck.rounds, 20), PAUSE_SECONDS_MAX)
            stuck.timer = asyncio.get_running_loop().call_later(longer, self._wake, slot)

    def _fail_overtaken(self, stuck: _Stuck, by: Call) -> None:
        """A later call was served: an earlier one for the same key has missed its turn."""
        keys = set(by.keys)
        kept: deque[tuple[Call, Server | None]] = deque()
        for call, where in stuck.again:
            if call.number > by.number or keys.isdisjoint(call.keys):
                kept.append((call, where))
            else:
                self._waiting -= 1
                call.fail(f"overtaken by a later call: {stuck.why}")
        stuck.again = kept

    # Slots.

    def _slot(self, call: Call) -> _Slot:
        if call.slot is None:
            call.slot = slot_of(_text(call.keys[0])) if call.keys else ANYWHERE
        slot = self._slots.get(call.slot)
        if slot is None:
            slot = self._slots[call.slot] = _Slot(call.slot)
        return slot

    def _owner(self, slot: _Slot) -> _Primary | None:
        if slot.number != ANYWHERE:
            return self._owners[slot.number]
        servers = list(self._servers.values())
        return next((s for s in servers if s.connected), random.choice(servers) if servers else None)

    def _go(self, slot: _Slot, server: Server, call: Call) -> None:
        slot.server = server
        slot.under_way += 1
        server.send(call)

    def _stick(self, slot: _Slot) -> _Stuck:
        if slot.stuck is None:
            slot.stuck = _Stuck()
            self._stuck.add(slot)
        return slot.stuck

    def _unstick(self, slot: _Slot) -> None:
        if slot.stuck is not None and slot.stuck.timer is not None:
            slot.stuck.timer.cancel()
        slot.stuck = None
        self._stuck.discard(slot)

    def _fail_stuck(self, slot: _Slot, why: str) -> None:
        assert slot.stuck is not None
        failing = [call for call, _ in slot.stuck.again] + list(slot.stuck.held)
        self._unstick(slot)
        self._waiting -= len(failing)
        for call in failing:
            call.fail(why)

    def _wake(self, slot: _Slot) -> None:
        if slot.stuck is not None:
            slot.stuck.timer = None
            if not slot.under_way:
                self._try(slot)

    def _try(self, slot: _Slot) -> None:
        """Nothing of the slot is under way: the first goes, alone."""
        stuck = slot.stuck
        assert stuck is not None
        if not stuck.again and not stuck.held:
            self._unstick(slot)
            return
        where = stuck.again[0][1] if stuck.again else None
        server = where or self._owner(slot)
        if server is None:
            self._await_owner(slot, stuck)
            return
        call = stuck.again.popleft()[0] if stuck.again else stuck.held.popleft()
        self._waiting -= 1
        call.asking = where is not None
        stuck.trying, stuck.rounds = call, stuck.rounds + 1
        self._go(slot, server, call)

    def _await_owner(self, slot: _Slot, stuck: _Stuck) -> None:
        """Until the next look at the cluster, or until patience ends."""
        loop = asyncio.get_running_loop()
        if not slot.until:
            slot.until = loop.time() + RETRY_SECONDS_MAX
        self._refresh()
        patience = max(slot.until - loop.time(), REFRESH_SECONDS_MIN)
        stuck.timer = loop.call_later(patience, self._nobody, slot)

    def _nobody(self, slot: _Slot) -> None:
        if slot.stuck is not None:
            slot.stuck.timer = None
            if self._owner(slot) is None:
                self._fail_stuck(slot, slot.stuck.why or self._trouble)
            elif not slot.under_way:
                self._try(slot)

    # The cluster as its servers see it.

    def _server(self, place: Place) -> _Primary:
        server = self._servers.get(place)
        if server is None:
            server = self._servers[place] = _Primary(self._seeds[0].at(*place), self)
        return server

    def _refresh(self) -> None:
        if self._refreshing is None and not self._closed:
            self._refreshing = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Asks one server after another, until one tells who has which slots."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._refreshed_at + REFRESH_SECONDS_MIN - loop.time()))
        try:
            for address in self._to_be_asked():
                ranges = await self._asked(address)
                if ranges:
                    await self._arrange(ranges)
                    break
            else:
                log.debug("the cluster tells nothing of itself: %s", self._trouble)
        finally:
            self._refreshed_at = loop.time()
            self._refreshing = None
            self._refreshed.set()
        for slot in list(self._stuck):
            owner = self._owner(slot)
            if owner is None:
                self._refresh()
            elif slot.stuck is not None and not slot.under_way and owner is not slot.server:
                if slot.stuck.timer is not None:
                    slot.stuck.timer.cancel()
                    slot.stuck.timer = None
                self._try(slot)

    def _to_be_asked(self) -> Iterator[Address]:
        known = list(self._servers.values())
        random.shuffle(known)
        known.sort(key=lambda server: not server.connected)
        yield from (server.address for server in known)
        yield from (seed for seed in self._seeds if Place(seed.host, seed.port) not in self._servers)

    async def _asked(self, address: Address) -> list[tuple[int, int, Place]]:
        try:
            async with asyncio.timeout(REFRESH_SECONDS_MAX):
                line = await address.open()
                try:
                    reply = await line.reply(["CLUSTER", "SLOTS"])
                finally:
                    line.close()
        except (LineLost, TimeoutError) as err:
            self._trouble = f"{address.host}:{address.port}: {err or 'no answer in time'}"
            return []
        if isinstance(reply, hiredis.ReplyError):
            self._trouble = f"{address.host}:{address.port}: {reply}"
        return owners(reply, address.host)

    async def _arrange(self, ranges: list[tuple[int, int, Place]]) -> None:
        arranged: list[_Primary | None] = [None] * SLOTS
        for first, last, place in ranges:
            arranged[first : last + 1] = [self._server(place)] * (last + 1 - first)
        self._owners = arranged
        places = {place for _, _, place in ranges}
        for place in [place for place in self._servers if place not in places]:
            if not self._servers[place].calls:
                await self._servers.pop(place).close()


def _text(key: Argument) -> str | bytes:
    return key if isinstance(key, str | bytes) else str(key)
