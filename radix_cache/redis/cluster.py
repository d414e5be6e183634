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
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import hiredis

from radix_cache.redis.call import UNKNOWN_SCRIPT_ERRORS, CommandArgument, RedisCall, RedisDown
from radix_cache.redis.connection import RedisAddress, ConnectionLost, Reply
from radix_cache.redis.server import RedisServer
from radix_cache.redis.slot_map import REFRESH_SECONDS_MIN, ClusterPrimary, SlotMap
from radix_cache.redis.topology import SlotRedirect, parse_redirect, slot_of

RETRY_SECONDS_MAX = 2.0
PAUSE_SECONDS = 0.02
PAUSE_SECONDS_MAX = 0.2
REDIRECTS_AT_ONCE_MAX = 3
ANYWHERE = -1
"""The slot of calls that have no key."""

RETRYABLE_ERRORS = ("TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", *UNKNOWN_SCRIPT_ERRORS)
"""What a server says that may soon be otherwise."""


@dataclass(slots=True, eq=False)
class _Stuck:
    """`again`: came back unserved, with where each should go if the server said so. `held`: not sent yet.

    `rounds`: how often the first was tried since one was last served. `trying`: it is under way now, alone.
    """

    again: deque[tuple[RedisCall, RedisServer | None]] = field(default_factory=deque)
    held: deque[RedisCall] = field(default_factory=deque)
    why: str = ""
    rounds: int = 0
    trying: RedisCall | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Slot:
    """`server`: where the calls under way went. `until`: when patience ends; 0 while all is well."""

    number: int
    under_way: int = 0
    server: RedisServer | None = None
    until: float = 0.0
    stuck: _Stuck | None = None


class RedisCluster:
    """`seeds`: some of its servers, to ask for the others. Everything is connected when it is needed."""

    def __init__(self, seeds: list[RedisAddress]) -> None:
        self._survey = SlotMap(seeds, self.answered, self._surveyed)
        self._slots: dict[int, _Slot] = {}
        self._stuck: set[_Slot] = set()
        self._waiting = 0
        self._numbers = count()
        self._closed = False

    @property
    def calls(self) -> int:
        """How many wait, or are under way."""
        return self._waiting + sum(server.calls for server in self._survey.servers)

    def has_room(self, call: RedisCall, most: int) -> bool:
        """Each server's calls are bounded, and those of all stuck slots: who is away does not stop the others."""
        slot = self._slot(call)
        owner = self._owner(slot)
        return self._waiting < most if slot.stuck is not None or owner is None else owner.calls < most

    def send(self, call: RedisCall) -> None:
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
    ) -> list[tuple[RedisAddress, list[bytes]]]:
        """Who has which channels; those that nobody has are left out. Raises RedisDown if nothing is known."""
        if anew or not self._survey.known:
            await self._survey.made()
        found: dict[RedisServer, list[bytes]] = {}
        for channel in channels:
            owner = self._survey.owner(slot_of(channel))
            if owner is not None:
                found.setdefault(owner, []).append(channel)
        if not found:
            raise RedisDown(self._survey.trouble)
        return [(server.address, theirs) for server, theirs in found.items()]

    async def primaries(self) -> list[RedisAddress]:
        """Everybody who has slots. Raises RedisDown if nobody tells, or if a slot has nobody."""
        await self._survey.made()
        return self._survey.primaries()

    async def close(self) -> None:
        self._closed = True
        await self._survey.close()
        for slot in list(self._stuck):
            self._fail_stuck(slot, "closed")

    # From the servers.

    def answered(self, server: RedisServer, call: RedisCall, reply: Reply | ConnectionLost) -> None:
        """In the order in which the server was asked."""
        slot = self._slot(call)
        slot.under_way -= 1
        call.asking = False
        if not isinstance(reply, ConnectionLost | hiredis.ReplyError):
            call.succeed(reply)
            self._served(slot, call)
        elif self._closed:
            call.fail(reply)
        elif isinstance(reply, ConnectionLost):
            self._survey.again()
            self._unserved(slot, call, str(reply), None, at_once=False)
        else:
            self._refused(slot, server, call, str(reply))
        if slot.stuck is not None and not slot.under_way and slot.stuck.timer is None:
            self._try(slot)

    def _refused(self, slot: _Slot, server: RedisServer, call: RedisCall, error: str) -> None:
        told = parse_redirect(error, server.address.host)
        if told is not None:
            self._redirected(slot, call, error, told)
        elif error.startswith(RETRYABLE_ERRORS):
            if error.startswith(UNKNOWN_SCRIPT_ERRORS):
                server.forget(call)
                self._unserved(slot, call, server.why(call, error), None, at_once=True)
                return
            if not error.startswith("TRYAGAIN"):
                self._survey.again()
            self._unserved(slot, call, error, None, at_once=False)
        else:
            call.fail(error)
            self._served(slot, call)

    def _redirected(self, slot: _Slot, call: RedisCall, error: str, told: SlotRedirect) -> None:
        target = self._survey.server(told.place)
        if not told.asking:
            self._survey.moved(told.slot, target)
            self._survey.again()
        self._unserved(slot, call, error, target if told.asking else None, at_once=True)

    def _served(self, slot: _Slot, call: RedisCall) -> None:
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

    def _unserved(self, slot: _Slot, call: RedisCall, why: str, where: RedisServer | None, *, at_once: bool) -> None:
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

    def _fail_overtaken(self, stuck: _Stuck, by: RedisCall) -> None:
        """A later call was served: an earlier one for the same key has missed its turn."""
        keys = set(by.keys)
        kept: deque[tuple[RedisCall, RedisServer | None]] = deque()
        for call, where in stuck.again:
            if call.number > by.number or keys.isdisjoint(call.keys):
                kept.append((call, where))
            else:
                self._waiting -= 1
                call.fail(f"overtaken by a later call: {stuck.why}")
        stuck.again = kept

    # Slots.

    def _slot(self, call: RedisCall) -> _Slot:
        if call.slot is None:
            call.slot = slot_of(_text(call.keys[0])) if call.keys else ANYWHERE
        slot = self._slots.get(call.slot)
        if slot is None:
            slot = self._slots[call.slot] = _Slot(call.slot)
        return slot

    def _owner(self, slot: _Slot) -> ClusterPrimary | None:
        return self._survey.anybody() if slot.number == ANYWHERE else self._survey.owner(slot.number)

    def _go(self, slot: _Slot, server: RedisServer, call: RedisCall) -> None:
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
        self._survey.again()
        patience = max(slot.until - loop.time(), REFRESH_SECONDS_MIN)
        stuck.timer = loop.call_later(patience, self._nobody, slot)

    def _surveyed(self) -> None:
        """Somebody else may have the slots that are stuck, or still nobody."""
        for slot in list(self._stuck):
            owner = self._owner(slot)
            if owner is None:
                self._survey.again()
            elif slot.stuck is not None and not slot.under_way and owner is not slot.server:
                if slot.stuck.timer is not None:
                    slot.stuck.timer.cancel()
                    slot.stuck.timer = None
                self._try(slot)

    def _nobody(self, slot: _Slot) -> None:
        if slot.stuck is not None:
            slot.stuck.timer = None
            if self._owner(slot) is None:
                self._fail_stuck(slot, slot.stuck.why or self._survey.trouble)
            elif not slot.under_way:
                self._try(slot)


def _text(key: CommandArgument) -> str | bytes:
    return key if isinstance(key, str | bytes) else str(key)
