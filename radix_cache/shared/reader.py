"""Keeps the read copy true: snapshot, listen, catch up; where something was missed, read that shard anew.

    connect -- listen to all shards -- compare tips -- (shards that differ: catch up, else snapshot) --> ready
                                          ^                                                                |
                                          |  every `check_seconds`, and whenever an entry does not fit     |
                                          +----------------------------------------------------------------+

Changes arrive as messages and are applied as they come. A message that was lost shows in the next one of its shard,
or, on a shard where nothing happens, in the next comparison of tips. What Redis has forgotten (a flush, a failover
that lost the last writes) shows in the same way, since every change names the one before it.
"""

import asyncio
import logging
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from struct import Struct

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from radix_cache.redis.ears import Ears
from radix_cache.redis.line import LineLost
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.copy import Gap, TreeCopy
from radix_cache.shared.keys import REGISTRY, Keys, NamespaceId
from radix_cache.shared.records import (
    Entry,
    Head,
    Holders,
    decode_head,
    decode_holders,
    decode_prediction,
    decode_tenure,
)
from radix_cache.turns import Turns

log = logging.getLogger(__name__)

_U16 = Struct("<H")

CHECK_SECONDS = 2.0
SCAN_COUNT = 512
AGAIN_SECONDS = 0.1
INBOX_MAX = 65536
CATCH_UP_MAX = 2048
SNAPSHOT_ATTEMPTS_MAX = 5
NONE = bytes(8)


class Reader:
    """`follow` for as long as the process lives.

    `changed`: called after every batch of changes. `checked`: called whenever the copy has been found whole.
    """

    def __init__(
        self,
        redis: ScriptCaller,
        keys: Keys,
        copy: TreeCopy,
        *,
        changed: Callable[[], None] = lambda: None,
        checked: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self.ready = asyncio.Event()
        self.up = False
        self.snapshots = 0
        self.gaps = 0
        self._redis = redis
        self._keys = keys
        self._copy = copy
        self._changed = changed
        self._checked = checked
        self._clock = clock
        self._check_seconds = check_seconds
        self._shards = [REGISTRY, *range(keys.shards)]
        self._numbers = {keys.tag(shard).encode(): shard for shard in self._shards}
        self._registry_tip = b""
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._bell = asyncio.Event()

    async def follow(self) -> None:
        """Keeps the copy true, with pauses while Redis is away."""
        while True:
            try:
                await self._listen()
            except (RedisDown, LineLost) as err:
                if self.up or not self.ready.is_set():
                    log.warning("the prefix index has lost Redis and answers from its copy (%s)", err)
                    self.ready.set()
                self.up = False
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen(self) -> None:
        """Until nothing can be heard any more."""
        self._inbox.clear()
        loop = asyncio.get_running_loop()
        due = True

        def check() -> None:
            nonlocal due
            due = True
            self._bell.set()

        timer = loop.call_later(self._check_seconds, check)

        def check_in(seconds: float) -> None:
            nonlocal timer
            timer.cancel()
            timer = loop.call_later(seconds, check)

        ears = Ears(self._redis, self._numbers, self._hear, lambda: check_in(AGAIN_SECONDS))
        try:
            while True:
                if due:
                    due = False
                    check_in(self._check_seconds)
                    ears.check()
                    await ears.place()
                    unread = await self._compare()
                    self._report(len(ears.astray), unread)
                    self.ready.set()
                    if self.up:
                        self._checked()
                turns = Turns()
                while self._inbox:
                    number, data = self._inbox.popleft()
                    await self._told(number, Entry.decode(data))
                    await turns.give()
                self._changed()
                await self._bell.wait()
                self._bell.clear()
        finally:
            timer.cancel()
            ears.close()

    def _report(self, astray: int, unread: list[int]) -> None:
        """A part of a cluster may be away. The other shards are followed meanwhile."""
        whole = not astray and not unread
        if whole and not self.up:
            log.info("the prefix index follows Redis")
        elif not whole and (self.up or not self.ready.is_set()):
            log.warning(
                "the prefix index answers for a part of its shards from its copy: "
                "%d cannot be heard, %d cannot be read",
                astray,
                len(unread),
            )
        self.up = whole

    def _hear(self, channel: bytes, data: bytes) -> None:
        if len(self._inbox) >= INBOX_MAX:
            self._inbox.popleft()  # It shows as a gap, and is read from the log.
        self._inbox.append((self._numbers[channel], data))
        self._bell.set()

    async def _told(self, number: int, entry: Entry) -> None:
        if number == REGISTRY:
            if entry.before == self._registry_tip:
                self._copy.enrol(*entry.tenure())
                self._registry_tip = entry.tip
            elif entry.tip != self._registry_tip:
                await self._read_registry()
            return
        try:
            self._copy.apply(number, entry)
        except Gap:
            await self._recover(number)

    async def _compare(self) -> list[int]:
        """Reads anew what differs, and gives the shards that cannot be read. The registry first: without it nobody
        holds anything. Raises RedisDown if nothing can be read."""
        seconds, microseconds = await self._redis.ask("TIME")
        self._copy.server_ahead = int(seconds) + int(microseconds) / 1e6 - self._clock()
        asked = [
            self._redis.ask("HMGET", self._keys.meta(shard), "tip", "sequence") for shard in self._shards
        ]
        tips = await asyncio.gather(*asked, return_exceptions=True)
        unread: list[int] = []
        for shard, stands in zip(self._shards, tips, strict=True):
            try:
                if isinstance(stands, BaseException):
                    raise stands
                await self._compare_one(shard, *stands)
            except RedisDown:
                unread.append(shard)
                if len(unread) == len(self._shards):
                    raise
        return unread

    async def _compare_one(self, shard: int, tip: bytes | None, sequence: bytes | None) -> None:
        if shard == REGISTRY:
            if (tip or NONE) != self._registry_tip:
                await self._read_registry()
        else:
            known = self._copy.shards.get(shard)
            if known is None or not known.loaded or (tip or NONE) != known.tip:
                await self._recover(shard, (tip or NONE, int(sequence or 0)))

    async def _read_registry(self) -> None:
        # The tip first: a change in between is then met again, and changes nothing.
        tip = await self._redis.ask("HGET", self._keys.meta(REGISTRY), "tip")
        tenures = _pairs(await self._redis.ask("HGETALL", self._keys.workers))
        for worker in set(self._copy.tenures) - {WorkerId(name.decode()) for name in tenures}:
            self._copy.dismiss(worker)
        for name, value in tenures.items():
            self._copy.enrol(WorkerId(name.decode()), *decode_tenure(value))
        self._registry_tip = tip or NONE

    async def _recover(self, number: int, stands: tuple[bytes, int] | None = None) -> None:
        """From the log if it goes back far enough, else from a snapshot."""
        if stands is None:
            tip, sequence = await self._redis.ask("HMGET", self._keys.meta(number), "tip", "sequence")
            stands = tip or NONE, int(sequence or 0)
        shard = self._copy.shards.get(number)
        if shard is not None and shard.loaded:
            if shard.tip == stands[0]:
                return  # The message was old news.
            self.gaps += 1
            if 0 < stands[1] - shard.sequence <= CATCH_UP_MAX:
                try:
                    turns = Turns()
                    for entry in await self._entries_after(number, shard.sequence):
                        self._copy.apply(number, entry)
                        await turns.give()
                    return
                except Gap:
                    pass
        await self._snapshot(number)

    async def _snapshot(self, number: int) -> None:
        for _ in range(SNAPSHOT_ATTEMPTS_MAX):
            try:
                await self._take_snapshot(number)
                self.snapshots += 1
                return
            except Gap:
                continue  # The log was cut, or Redis lost its memory, while we read.
        raise RedisDown(f"shard {number} changes faster than it can be read")

    async def _take_snapshot(self, number: int) -> None:
        keys = self._keys
        tip, sequence = await self._redis.ask("HMGET", keys.meta(number), "tip", "sequence")
        found = _pairs(await self._redis.ask("HGETALL", keys.names(number)))
        names = {NamespaceId(identity): name for identity, name in found.items()}
        trees: list[tuple[NamespaceId, dict[bytes, bytes]]] = []
        for namespace in names:
            fields: dict[bytes, bytes] = {}
            cursor = b"0"
            while True:
                cursor, page = await self._redis.ask(
                    "HSCAN", keys.tree(namespace), cursor, "COUNT", SCAN_COUNT
                )
                fields.update(_pairs(page))
                if cursor == b"0":
                    break
            trees.append((namespace, fields))
        foretold = _pairs(await self._redis.ask("HGETALL", keys.predictions(number)))
        predictions = (decode_prediction(identity, value) for identity, value in foretold.items())
        since = int(sequence or 0)
        entries = await self._entries_after(number, since)
        nodes = ((namespace, *node) for namespace, fields in trees for node in _assembled(fields))
        turns = Turns()
        for _ in self._copy.load(number, tip or NONE, since, names, nodes, predictions, entries):
            await turns.give()

    async def _entries_after(self, number: int, sequence: int) -> list[Entry]:
        found = await self._redis.ask("XRANGE", self._keys.log(number), f"({sequence}-1", "+")
        return [Entry.decode(entry) for _, (_, entry) in found]


def _assembled(fields: dict[bytes, bytes]) -> Iterator[tuple[Head, Hashes, dict[int, Holders]]]:
    """The nodes of one tree. Who was met half written is left out: the log has it."""
    for name, value in fields.items():
        run = fields.get(b"R" + name[1:9])
        if name[:1] != b"N" or run is None:
            continue
        try:
            head = decode_head(int.from_bytes(name[1:9], "little"), value)
            hashes: Hashes = array("Q", run[8:])
            more = ((at, fields.get(b"H" + name[1:9] + _U16.pack(at))) for at in range(1, 1 << head.level))
            holders = {at: decode_holders(text) for at, text in more if text is not None}
        except (struct.error, ValueError):
            # Damaged, and no reason to know nothing else; `radixgate index verify` finds and mends it.
            log.debug("a node of the prefix index cannot be read")
            continue
        if len(hashes) == head.length:
            yield head, hashes, holders


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """A hash as Redis replies with it: name, value, name, value."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
