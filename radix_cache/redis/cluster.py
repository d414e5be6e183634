"""A client of a Redis Cluster: sends each call to the primary of its slot, and follows slots that move.

    well    calls of the slot are sent as they come, many in flight at a time
      |  a call comes back unserved: MOVED, ASK, TRYAGAIN, CLUSTERDOWN, LOADING, connection lost
      v
    stuck   new calls of the slot are held; first those under way are answered. Then the first is sent alone, with
            pauses, until it is served; the others follow in their order.

So the calls of one slot keep their order, with one exception: a call that is already in flight may be served
although an earlier one for the same key was not. The earlier call then fails, since it would come too late. After
RETRY_SECONDS_MAX without success all held calls fail; from then on each call gets one attempt until one succeeds.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import hiredis

from radix_cache.redis.call import UNKNOWN_SCRIPT_ERRORS, CommandArgument, RedisCall, RedisDown
from radix_cache.redis.connection import ConnectionLost, RedisAddress, Reply
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
"""Prefixes of transient errors."""


@dataclass(slots=True, eq=False)
class _Stuck:
    """The calls of a slot that is stuck."""

    returned: deque[tuple[RedisCall, RedisServer | None]] = field(default_factory=deque)
    """Calls that came back unserved, each with the server to which it was redirected, if any."""
    held: deque[RedisCall] = field(default_factory=deque)
    """Calls that were not sent yet."""
    reason: str = ""
    """Why the last call was not served."""
    rounds: int = 0
    """How often the first call was tried since the last served call."""
    trying: RedisCall | None = None
    """The first call, while it is sent alone."""
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Slot:
    """The state of one slot."""

    number: int
    under_way: int = 0
    server: RedisServer | None = None
    """The server to which the calls under way were sent."""
    retry_until: float = 0.0
    """Time of the loop after which unserved calls fail; 0 while all calls are served."""
    stuck: _Stuck | None = None


class RedisCluster:
    """Calls to a Redis Cluster. `seeds` are some of its servers; connections are made on demand."""

    def __init__(self, seeds: list[RedisAddress]) -> None:
        self._slot_map = SlotMap(seeds, self.answered, self._slot_map_refreshed)
        self._slots: dict[int, _Slot] = {}
        self._stuck: set[_Slot] = set()
        self._waiting = 0
        self._waiting_bytes = 0
        self._numbers = count()
        self._closed = False

    @property
    def calls(self) -> int:
        """The number of calls that wait or are under way."""
        return self._waiting + sum(server.calls for server in self._slot_map.servers)

    def has_room(self, call: RedisCall, calls_max: int, bytes_max: int) -> bool:
        """Return whether another call may be made.

        The calls of each server are bounded, and so are the held calls of all stuck slots together. An unreachable
        server therefore does not stop calls to the others.
        """
        slot = self._slot(call)
        owner = self._owner(slot)
        if slot.stuck is not None or owner is None:
            return self._waiting < calls_max and self._waiting_bytes < bytes_max
        return owner.has_room(call, calls_max, bytes_max)

    def send(self, call: RedisCall) -> None:
        """Send a call to the server of its slot, or hold it while the slot is stuck."""
        slot = self._slot(call)
        owner = self._owner(slot)
        call.number = next(self._numbers)
        if slot.stuck is None and owner is not None and (slot.server is owner or not slot.under_way):
            self._send_to(slot, owner, call)
            return
        stuck = self._make_stuck(slot)
        stuck.held.append(call)
        self._keep(call)
        if not slot.under_way and stuck.timer is None:
            self._try_first(slot)

    async def addresses_of(
        self, channels: Iterable[bytes], *, refresh: bool = False
    ) -> list[tuple[RedisAddress, list[bytes]]]:
        """Return the servers that have these channels, leaving out channels without a server.

        Raises RedisDown if no channel has a server.
        """
        if refresh or not self._slot_map.is_known:
            await self._slot_map.refreshed()
        found: dict[RedisServer, list[bytes]] = {}
        for channel in channels:
            owner = self._slot_map.owner(slot_of(channel))
            if owner is not None:
                found.setdefault(owner, []).append(channel)
        if not found:
            raise RedisDown(self._slot_map.trouble)
        return [(server.address, theirs) for server, theirs in found.items()]

    async def primaries(self) -> list[RedisAddress]:
        """Return the addresses of all servers with slots.

        Raises RedisDown if no server returns the slot map, or if a slot has no server.
        """
        await self._slot_map.refreshed()
        return self._slot_map.primaries()

    async def close(self) -> None:
        """Close all connections and fail the calls that still wait."""
        self._closed = True
        await self._slot_map.close()
        for slot in list(self._stuck):
            self._fail_stuck(slot, "closed")

    # Called by the servers.

    def answered(self, server: RedisServer, call: RedisCall, reply: Reply | ConnectionLost) -> None:
        """Handle the reply to a call; a server's replies come in the order of its calls."""
        slot = self._slot(call)
        slot.under_way -= 1
        call.asking = False
        if not isinstance(reply, ConnectionLost | hiredis.ReplyError):
            call.succeed(reply)
            self._served(slot, call)
        elif self._closed:
            call.fail(reply)
        elif isinstance(reply, ConnectionLost):
            self._slot_map.refresh()
            self._unserved(slot, call, str(reply), None, at_once=False)
        else:
            self._handle_error(slot, server, call, str(reply))
        if slot.stuck is not None and not slot.under_way and slot.stuck.timer is None:
            self._try_first(slot)

    def _handle_error(self, slot: _Slot, server: RedisServer, call: RedisCall, error: str) -> None:
        redirect = parse_redirect(error, server.address.host)
        if redirect is not None:
            self._redirected(slot, call, error, redirect)
        elif error.startswith(RETRYABLE_ERRORS):
            if error.startswith(UNKNOWN_SCRIPT_ERRORS):
                server.forget_script(call)
                self._unserved(slot, call, server.explain(call, error), None, at_once=True)
                return
            if not error.startswith("TRYAGAIN"):
                self._slot_map.refresh()
            self._unserved(slot, call, error, None, at_once=False)
        else:
            call.fail(error)
            self._served(slot, call)

    def _redirected(self, slot: _Slot, call: RedisCall, error: str, redirect: SlotRedirect) -> None:
        target = self._slot_map.server(redirect.endpoint)
        if not redirect.asking:
            self._slot_map.slot_moved(redirect.slot, target)
            self._slot_map.refresh()
        self._unserved(slot, call, error, target if redirect.asking else None, at_once=True)

    def _served(self, slot: _Slot, call: RedisCall) -> None:
        slot.retry_until = 0.0
        stuck = slot.stuck
        if stuck is None:
            return
        stuck.rounds = 0
        if stuck.trying is not call:
            self._fail_overtaken(stuck, call)
            return
        stuck.trying = None
        # The calls after it are sent too, up to the first one that was redirected with ASK.
        owner = self._owner(slot)
        while owner is not None and stuck.returned and stuck.returned[0][1] is None:
            self._send_to(slot, owner, self._let_go(stuck.returned.popleft()[0]))
        if owner is None or stuck.returned:
            return
        while stuck.held:
            self._send_to(slot, owner, self._let_go(stuck.held.popleft()))
        self._make_well(slot)

    def _unserved(
        self, slot: _Slot, call: RedisCall, reason: str, target: RedisServer | None, *, at_once: bool
    ) -> None:
        """Queue the call again: after earlier returned calls, before calls that were never sent."""
        now = asyncio.get_running_loop().time()
        if not slot.retry_until:
            slot.retry_until = now + RETRY_SECONDS_MAX
        stuck = self._make_stuck(slot)
        if stuck.trying is call:
            stuck.trying = None
        at_once = at_once and stuck.rounds < REDIRECTS_AT_ONCE_MAX
        if now >= slot.retry_until and not at_once:
            call.fail(reason)
            self._fail_stuck(slot, reason)
            return
        stuck.reason = reason
        place = len(stuck.returned)
        while place and stuck.returned[place - 1][0].number > call.number:
            place -= 1
        stuck.returned.insert(place, (call, target))
        self._keep(call)
        if not at_once and stuck.timer is None:
            pause = min(PAUSE_SECONDS * 1.3 ** min(stuck.rounds, 20), PAUSE_SECONDS_MAX)
            stuck.timer = asyncio.get_running_loop().call_later(pause, self._wake, slot)

    def _fail_overtaken(self, stuck: _Stuck, by: RedisCall) -> None:
        """Fail returned calls that are older than a served call for the same key."""
        keys = set(by.keys)
        kept: deque[tuple[RedisCall, RedisServer | None]] = deque()
        for call, target in stuck.returned:
            if call.number > by.number or keys.isdisjoint(call.keys):
                kept.append((call, target))
            else:
                self._let_go(call).fail(f"overtaken by a later call: {stuck.reason}")
        stuck.returned = kept

    # Slots.

    def _slot(self, call: RedisCall) -> _Slot:
        if call.slot is None:
            call.slot = slot_of(_key_text(call.keys[0])) if call.keys else ANYWHERE
        slot = self._slots.get(call.slot)
        if slot is None:
            slot = self._slots[call.slot] = _Slot(call.slot)
        return slot

    def _owner(self, slot: _Slot) -> ClusterPrimary | None:
        return self._slot_map.any_server() if slot.number == ANYWHERE else self._slot_map.owner(slot.number)

    def _send_to(self, slot: _Slot, server: RedisServer, call: RedisCall) -> None:
        slot.server = server
        slot.under_way += 1
        server.send(call)

    def _keep(self, call: RedisCall) -> None:
        """Count a call that waits in a stuck slot."""
        self._waiting += 1
        self._waiting_bytes += len(call.packed)

    def _let_go(self, call: RedisCall) -> RedisCall:
        """Stop counting a call that waited in a stuck slot, and return it."""
        self._waiting -= 1
        self._waiting_bytes -= len(call.packed)
        return call

    def _make_stuck(self, slot: _Slot) -> _Stuck:
        if slot.stuck is None:
            slot.stuck = _Stuck()
            self._stuck.add(slot)
        return slot.stuck

    def _make_well(self, slot: _Slot) -> None:
        if slot.stuck is not None and slot.stuck.timer is not None:
            slot.stuck.timer.cancel()
        slot.stuck = None
        self._stuck.discard(slot)

    def _fail_stuck(self, slot: _Slot, reason: str) -> None:
        assert slot.stuck is not None
        failing = [call for call, _ in slot.stuck.returned] + list(slot.stuck.held)
        self._make_well(slot)
        for call in failing:
            self._let_go(call).fail(reason)

    def _wake(self, slot: _Slot) -> None:
        if slot.stuck is not None:
            slot.stuck.timer = None
            if not slot.under_way:
                self._try_first(slot)

    def _try_first(self, slot: _Slot) -> None:
        """Send the first call of a slot alone, while no other call of the slot is under way."""
        stuck = slot.stuck
        assert stuck is not None
        if not stuck.returned and not stuck.held:
            self._make_well(slot)
            return
        target = stuck.returned[0][1] if stuck.returned else None
        server = target or self._owner(slot)
        if server is None:
            self._await_owner(slot, stuck)
            return
        call = self._let_go(stuck.returned.popleft()[0] if stuck.returned else stuck.held.popleft())
        call.asking = target is not None
        stuck.trying, stuck.rounds = call, stuck.rounds + 1
        self._send_to(slot, server, call)

    def _await_owner(self, slot: _Slot, stuck: _Stuck) -> None:
        """Wait until the slot map is refreshed, or the slot's calls have waited too long."""
        loop = asyncio.get_running_loop()
        if not slot.retry_until:
            slot.retry_until = loop.time() + RETRY_SECONDS_MAX
        self._slot_map.refresh()
        patience = max(slot.retry_until - loop.time(), REFRESH_SECONDS_MIN)
        stuck.timer = loop.call_later(patience, self._owner_overdue, slot)

    def _slot_map_refreshed(self) -> None:
        """Retry stuck slots that have another server now; refresh again while a slot has none."""
        for slot in list(self._stuck):
            owner = self._owner(slot)
            if owner is None:
                self._slot_map.refresh()
            elif slot.stuck is not None and not slot.under_way and owner is not slot.server:
                if slot.stuck.timer is not None:
                    slot.stuck.timer.cancel()
                    slot.stuck.timer = None
                self._try_first(slot)

    def _owner_overdue(self, slot: _Slot) -> None:
        if slot.stuck is not None:
            slot.stuck.timer = None
            if self._owner(slot) is None:
                self._fail_stuck(slot, slot.stuck.reason or self._slot_map.trouble)
            elif not slot.under_way:
                self._try_first(slot)


def _key_text(key: CommandArgument) -> str | bytes:
    return key if isinstance(key, str | bytes) else str(key)
