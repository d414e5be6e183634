"""Applies the index changes of all gateways to the replica; reads a shard again that missed a change.

    connect -- subscribe to all shards -- compare tips -- (shards that differ: catch up, else snapshot) --> ready
                                          ^                                                                |
                                          |  every `check_seconds`, and whenever an entry does not fit     |
                                          +----------------------------------------------------------------+

Changes arrive as messages and are applied as they come. A lost message is noticed with the next message of its
shard, or, if there is none, with the next comparison of tips. Changes that Redis itself has lost (a flush, a
failover without the last writes) are noticed in the same way, since every change contains the id of the one before
it.

Messages that arrived before a shard was read again are contained in what was read, and are skipped without a check:
checking each would take longer than the next ones take to arrive. The comparison runs every `check_seconds`,
however many messages arrive.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection

from radix_cache.loop_yield import LoopYielder
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from radix_cache.redis.connection import ConnectionLost
from radix_cache.redis.pubsub import ShardedSubscriber
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, Keys, TreeId
from radix_cache.shared.log_records import LogEntry, decode_tenure
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.snapshot import LogGap, ShardSnapshot
from radix_cache.shared.tree_dump import parse_pairs

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
SCAN_COUNT = 512
AGAIN_SECONDS = 0.1
INBOX_MAX = 65536
INBOX_BYTES_MAX = 16 * 1024**2
CATCH_UP_MAX = 2048
SNAPSHOT_ATTEMPTS_MAX = 5
NONE = bytes(8)


class ReplicaReader:
    """Brings the replica up to date with Redis; run `follow` until the process stops.

    Args:
        redis: The Redis server or cluster.
        keys: The names of the keys.
        replica: The replica to bring up to date.
        changed: Called after every batch of changes.
        checked: Called with the lost shards (see `lost_shards`) after every comparison, and when Redis is lost.
        clock: Seconds that never run backwards.
        check_seconds: How often tips are compared.
        shards: The shards to follow; None for all, and the registry.
    """

    def __init__(
        self,
        redis: ScriptCaller,
        keys: Keys,
        replica: TreeReplica,
        *,
        changed: Callable[[], None] = lambda: None,
        checked: Callable[[Collection[int]], None] = lambda lost_shards: None,
        clock: Callable[[], float] = time.monotonic,
        check_seconds: float = CHECK_SECONDS,
        shards: Collection[int] | None = None,
    ) -> None:
        self.ready = asyncio.Event()
        self.snapshots = 0
        self.gaps = 0
        self._redis = redis
        self._keys = keys
        self._replica = replica
        self._changed = changed
        self._checked = checked
        self._clock = clock
        self._check_seconds = check_seconds
        self._shards = [REGISTRY, *range(keys.shards)] if shards is None else list(shards)
        self.lost_shards: Collection[int] = frozenset(self._shards)
        """The shards of which the replica may be outdated, because their channel or their data cannot be read."""
        self._shard_of_channel = {keys.tag(shard).encode(): shard for shard in self._shards}
        self._registry_tip = b""
        self._inbox: deque[tuple[int, int, bytes]] = deque()
        self._inbox_bytes = 0
        self._messages_received = 0
        self._received_before_read: dict[int, int] = {}
        """By shard: the messages received before it was last read, whose changes are in what was read."""
        self._lagging: dict[int, tuple[tuple[bytes, int], int]] = {}
        """By lagging shard: its position in Redis when the lag was noticed, and the messages received by then."""
        self._wake = asyncio.Event()

    @property
    def up(self) -> bool:
        """Whether the replica shows all shards as they are."""
        return not self.lost_shards

    async def follow(self) -> None:
        """Keep the replica up to date until cancelled; retry after a pause while Redis is away."""
        while True:
            try:
                await self._listen()
            except (RedisDown, ConnectionLost) as err:
                if self.up or not self.ready.is_set():
                    log.warning(
                        "the prefix index has lost Redis and answers from its replica in memory (%s)", err
                    )
                    self.ready.set()
                self.lost_shards = frozenset(self._shards)
                self._checked(self.lost_shards)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen(self) -> None:
        """Follow all shards until the last subscription is lost. Raises RedisDown, ConnectionLost."""
        self._inbox.clear()
        self._inbox_bytes = 0
        timer = _ComparisonTimer(self._wake)
        subscriber = ShardedSubscriber(
            self._redis, self._shard_of_channel, self._on_message, lambda: timer.set(AGAIN_SECONDS)
        )
        at_once = True
        try:
            while True:
                if timer.due:
                    timer.due = False
                    timer.set(self._check_seconds)
                    at_once = await self._subscribe_and_compare(subscriber, at_once=at_once)
                await self._apply_messages(timer)
                self._changed()
                await self._wake.wait()
                self._wake.clear()
        finally:
            timer.close()
            subscriber.close()

    async def _subscribe_and_compare(self, subscriber: ShardedSubscriber, *, at_once: bool) -> bool:
        """Subscribe to the channels without a subscription, and compare all shards.

        Returns whether shards are left without a subscription, or unread. Raises RedisDown, ConnectionLost.
        """
        subscriber.check_connections()
        at_once = at_once or bool(subscriber.unsubscribed)
        await subscriber.subscribe()
        unread = await self._compare(at_once=at_once)
        unsubscribed = {self._shard_of_channel[channel] for channel in subscriber.unsubscribed}
        self._note_lost_shards(unsubscribed, unread)
        self.ready.set()
        self._checked(self.lost_shards)
        return bool(unsubscribed or unread)

    async def _apply_messages(self, timer: "_ComparisonTimer") -> None:
        """Apply the messages that have come, until the next comparison is due."""
        yielder = LoopYielder()
        while self._inbox and not timer.due:
            message, number, data = self._inbox.popleft()
            self._inbox_bytes -= len(data)
            if message > self._received_before_read.get(number, 0):
                await self._apply_message(number, LogEntry.decode(data))
            await yielder.yield_if_due()

    def _note_lost_shards(self, unsubscribed: set[int], unread: list[int]) -> None:
        """Record and log the shards that cannot be followed while the others are."""
        whole = not unsubscribed and not unread
        if whole and not self.up:
            log.info("the prefix index follows all shards in Redis")
        elif not whole and (self.up or not self.ready.is_set()):
            log.warning(
                "the prefix index answers for some of its shards from its replica in memory: "
                "%d without a subscription, %d not readable",
                len(unsubscribed),
                len(unread),
            )
        self.lost_shards = unsubscribed.union(unread)

    def _on_message(self, channel: bytes, data: bytes) -> None:
        """Keep a message until it is applied; the oldest are dropped beyond INBOX_MAX and INBOX_BYTES_MAX."""
        self._messages_received += 1
        self._inbox.append((self._messages_received, self._shard_of_channel[channel], data))
        self._inbox_bytes += len(data)
        while len(self._inbox) > INBOX_MAX or self._inbox_bytes > INBOX_BYTES_MAX:
            # The dropped message is noticed as a gap, and its entry is read from the log.
            self._inbox_bytes -= len(self._inbox.popleft()[2])
        self._wake.set()

    async def _apply_message(self, number: int, entry: LogEntry) -> None:
        """Apply one change; where an earlier one is missing, read what the shard lacks."""
        if number == REGISTRY:
            if entry.before == self._registry_tip:
                self._replica.enrol(*entry.tenure())
                self._registry_tip = entry.tip
            elif entry.tip != self._registry_tip:
                await self._read_registry()
            return
        try:
            self._replica.apply(number, entry)
        except LogGap:
            await self._recover(number)

    async def _compare(self, *, at_once: bool) -> list[int]:
        """Read the shards again that differ from Redis, and return the shards that cannot be read.

        The registry comes first, since without it no worker holds anything. With `at_once`, shards that differ are
        read now, because messages may have been missed. Otherwise such a shard has most likely just changed, with
        its message still under way; it is read only if the message has not arrived by the next comparison.
        Raises RedisDown if no shard can be read.
        """
        seconds, microseconds = await self._redis.ask("TIME")
        self._replica.server_ahead = int(seconds) + int(microseconds) / 1e6 - self._clock()
        asked = [
            self._redis.ask("HMGET", self._keys.meta(shard), "tip", "sequence") for shard in self._shards
        ]
        tips = await asyncio.gather(*asked, return_exceptions=True)
        unread: list[int] = []
        for shard, position in zip(self._shards, tips, strict=True):
            try:
                if isinstance(position, BaseException):
                    raise position
                await self._compare_one(shard, *position, at_once=at_once)
            except RedisDown:
                unread.append(shard)
                if len(unread) == len(self._shards):
                    raise
        return unread

    async def _compare_one(
        self, shard: int, tip: bytes | None, sequence: bytes | None, *, at_once: bool
    ) -> None:
        """Read a shard again if it differs from Redis, which is at this tip; see `_compare`."""
        if shard == REGISTRY:
            if (tip or NONE) != self._registry_tip:
                await self._read_registry()
            return
        position, known = (tip or NONE, int(sequence or 0)), self._replica.shards.get(shard)
        if known is not None and known.loaded:
            if position[0] == known.tip:
                self._lagging.pop(shard, None)
                return
            if not at_once and not self._has_lost_message(shard, position, known.sequence):
                return
        self._lagging.pop(shard, None)
        await self._recover(shard, position)

    def _has_lost_message(self, shard: int, position: tuple[bytes, int], sequence: int) -> bool:
        """Return whether a shard that lags behind Redis has lost a message; else the message may be under way.

        It is lost if the shard lags since the last comparison, and all messages received by then are applied.
        """
        before = self._lagging.get(shard)
        if before is not None:
            position_then, heard_then = before
            if self._inbox and self._inbox[0][0] <= heard_then:
                return False
            if position == position_then or sequence < position_then[1]:
                return True
        self._lagging[shard] = position, self._messages_received
        return False

    async def _read_registry(self) -> None:
        """Take over the tenures of all workers."""
        # The tip is read first, so that a change in between is applied again, which has no effect.
        tip = await self._redis.ask("HGET", self._keys.meta(REGISTRY), "tip")
        tenures = parse_pairs(await self._redis.ask("HGETALL", self._keys.workers))
        for worker in set(self._replica.tenures) - {WorkerId(name.decode()) for name in tenures}:
            self._replica.drop_worker(worker)
        for name, value in tenures.items():
            self._replica.enrol(WorkerId(name.decode()), *decode_tenure(value))
        self._registry_tip = tip or NONE

    async def _recover(self, number: int, position: tuple[bytes, int] | None = None) -> None:
        """Bring a shard up to date from its log if that reaches back far enough, else from a snapshot."""
        received = self._messages_received
        await self._read_missed(number, position)
        self._received_before_read[number] = received

    async def _read_missed(self, number: int, position: tuple[bytes, int] | None) -> None:
        """Read what a shard lacks up to its position in Redis, or all of it; None: read the position first."""
        if position is None:
            tip, sequence = await self._redis.ask("HMGET", self._keys.meta(number), "tip", "sequence")
            position = tip or NONE, int(sequence or 0)
        shard = self._replica.shards.get(number)
        if shard is not None and shard.loaded:
            if shard.tip == position[0]:
                return  # The message was applied meanwhile.
            self.gaps += 1
            if 0 < position[1] - shard.sequence <= CATCH_UP_MAX:
                try:
                    yielder = LoopYielder()
                    for entry in await self._entries_after(number, shard.sequence):
                        self._replica.apply(number, entry)
                        await yielder.yield_if_due()
                    return
                except LogGap:
                    pass
        await self._snapshot(number)

    async def _snapshot(self, number: int) -> None:
        """Read a whole shard, again if it changes meanwhile. Raises RedisDown after SNAPSHOT_ATTEMPTS_MAX."""
        for _ in range(SNAPSHOT_ATTEMPTS_MAX):
            try:
                await self._take_snapshot(number)
                self.snapshots += 1
                return
            except LogGap:
                continue  # The log was trimmed, or Redis lost its data, meanwhile.
        raise RedisDown(f"shard {number} changes faster than it can be read")

    async def _take_snapshot(self, number: int) -> None:
        """Read a whole shard into the replica. Raises LogGap if the log does not reach back to its beginning."""
        keys = self._keys
        tip, sequence = await self._redis.ask("HMGET", keys.meta(number), "tip", "sequence")
        names = parse_pairs(await self._redis.ask("HGETALL", keys.names(number)))
        found = ShardSnapshot(
            tip or NONE, int(sequence or 0), {TreeId(identity): name for identity, name in names.items()}
        )
        yielder = LoopYielder()
        for namespace, tree in found.trees.items():
            cursor = b"0"
            while True:
                cursor, page = await self._redis.ask(
                    "HSCAN", keys.tree(namespace), cursor, "COUNT", SCAN_COUNT
                )
                for name, value in parse_pairs(page).items():
                    tree.put(name, value)
                    await yielder.yield_if_due()
                if cursor == b"0":
                    break
        found.set_predictions(parse_pairs(await self._redis.ask("HGETALL", keys.predictions(number))).items())
        for entry in await self._entries_after(number, found.sequence):
            found.apply(entry)
            await yielder.yield_if_due()
        for _ in self._replica.load(
            number, found.tip, found.sequence, found.names, found.nodes(), found.predictions
        ):
            await yielder.yield_if_due()

    async def _entries_after(self, number: int, sequence: int) -> list[LogEntry]:
        """Return the entries of a shard's log after this sequence number."""
        found = await self._redis.ask("XRANGE", self._keys.log(number), f"({sequence}-1", "+")
        return [LogEntry.decode(entry) for _, (_, entry) in found]


class _ComparisonTimer:
    """Sets `due`, and `wake`, when the shards are to be compared next; at first at once."""

    def __init__(self, wake: asyncio.Event) -> None:
        self.due = True
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Let the next comparison be due in so many seconds, in place of the time that was set before."""
        self.close()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._mark_due)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _mark_due(self) -> None:
        self.due = True
        self._wake.set()
