"""The registry of workers in Redis: workers that register themselves or are added by hand, and drained workers.

    {rg:workers}:ids            set of the ids
    {rg:workers}:at:<id>        JSON of one worker; expires unless it was added by hand
    {rg:workers}:draining       set of ids that get no new requests, from any source

All gateways are notified of a change on the stream of messages between them, and then read the registry. They also
read it from time to time, because leases expire without notice, and messages may be lost.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from gateway.discovery.file import parse_worker
from gateway.discovery.source import SourceUnavailable
from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.turn_stream import STREAM_MAX
from gateway.settings.workers import WorkerSettings
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller

log = logging.getLogger(__name__)

DRAINED_SECONDS = 1.0
"""Interval at which the drained workers are read without a notification."""
LEASE_SECONDS = 15
READ_SECONDS = LEASE_SECONDS / 3
"""Interval at which the registered workers are read without a notification."""
WORKERS_MAX = 10_000


class RegistryChanges:
    """Notifications of changes of the registry, counted as this process receives them."""

    def __init__(self) -> None:
        self.count = 0
        self._arrived = asyncio.Event()

    def notify(self, _change: str = "") -> None:
        """Count a change, and wake all waiting tasks."""
        self.count += 1
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def wait(self, seen: int, seconds: float) -> None:
        """Wait until there are more changes than `seen`, but no longer than so many seconds."""
        if self.count == seen:
            with suppress(TimeoutError):
                # Not asyncio.wait_for, which before Python 3.12 loses a cancellation that arrives with a change.
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()


class WorkerRegistry:
    """Reads and changes the registry. All methods raise RedisDown if Redis does not answer."""

    def __init__(self, redis: ScriptCaller, prefix: str) -> None:
        self.changes = RegistryChanges()
        self._redis = redis
        self._tag = f"{{{prefix}:workers}}"
        self._stream = QueueKeys(prefix).turns

    async def registered(self) -> list[dict[str, Any]]:
        """Return the workers as they were registered, and remove the ids of workers with an expired lease."""
        ids = sorted(await self._redis.ask("SMEMBERS", f"{self._tag}:ids"))[:WORKERS_MAX]
        if not ids:
            return []
        texts = await self._redis.ask("MGET", *(f"{self._tag}:at:{one.decode()}" for one in ids))
        gone = [one for one, text in zip(ids, texts, strict=True) if text is None]
        if gone:
            await self._remove_ids(gone)
        return [_worker(one.decode(), text) for one, text in zip(ids, texts, strict=True) if text is not None]

    async def _remove_ids(self, gone: list[bytes]) -> None:
        """Remove ids, but keep those that were registered meanwhile: a worker added by hand is put only once."""
        await self._redis.ask("SREM", f"{self._tag}:ids", *gone)
        texts = await self._redis.ask("MGET", *(f"{self._tag}:at:{one.decode()}" for one in gone))
        if back := [one for one, text in zip(gone, texts, strict=True) if text is not None]:
            await self._redis.ask("SADD", f"{self._tag}:ids", *back)

    async def workers(self) -> tuple[list[WorkerSettings], dict[str, str]]:
        """Return the valid workers, and by id why other workers are not valid.

        Workers of other versions may have fields that this version does not know.
        """
        found: list[WorkerSettings] = []
        refused: dict[str, str] = {}
        for one in await self.registered():
            try:
                found.append(parse_worker(one))
            except SourceUnavailable as err:
                refused[str(one.get("id"))[:100]] = str(err)
        return found, refused

    async def put(self, worker: dict[str, Any], *, lease_seconds: int | None) -> None:
        """Register a worker for the time of a lease; with None, until it is removed."""
        name, text = f"{self._tag}:at:{worker['id']}", msgspec.json.encode(worker)
        lease = () if lease_seconds is None else ("PX", lease_seconds * 1000)
        before = await self._redis.ask("SET", name, text, *lease, "GET")
        added = await self._redis.ask("SADD", f"{self._tag}:ids", worker["id"])
        if added or before != text:  # A renewed lease is no change.
            await self._notify("registered")

    async def remove(self, worker: str) -> bool:
        """Remove a worker, and return whether it was registered."""
        await self._redis.ask("SREM", f"{self._tag}:ids", worker)
        was_registered = bool(await self._redis.ask("DEL", f"{self._tag}:at:{worker}"))
        await self._notify("removed")
        return was_registered

    async def draining(self) -> frozenset[str]:
        """Return the ids of the workers that operators drain."""
        return frozenset(one.decode() for one in await self._redis.ask("SMEMBERS", f"{self._tag}:draining"))

    async def drain(self, workers: Iterable[str]) -> None:
        """Make all gateways send no new requests to these workers."""
        await self._redis.ask("SADD", f"{self._tag}:draining", *workers)
        await self._notify("drained")

    async def resume(self, workers: Iterable[str]) -> None:
        """Make all gateways send requests to these workers again."""
        await self._redis.ask("SREM", f"{self._tag}:draining", *workers)
        await self._notify("resumed")

    async def _notify(self, change: str) -> None:
        """Notify all gateways that the registry has changed."""
        await self._redis.ask("XADD", self._stream, "MAXLEN", "~", STREAM_MAX, "*", "workers", change)


class RedisSource:
    """A source with the registered workers. Workers that are not valid are logged and left out."""

    name = "registry in Redis"

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._changes_seen = 0
        self._refused: dict[str, str] = {}

    async def find(self) -> list[WorkerSettings]:
        """Return the valid registered workers. Raises SourceUnavailable if Redis does not answer."""
        self._changes_seen = self._registry.changes.count
        try:
            found, refused = await self._registry.workers()
        except RedisDown as err:
            raise SourceUnavailable(f"Redis does not answer: {err}") from err
        for worker, why in refused.items():
            if self._refused.get(worker) != why:
                log.warning("worker %s is registered, but its entry is invalid: %s", worker, why)
        self._refused = refused
        return found

    async def wait(self) -> None:
        """Wait until the registry has changed, or leases may have expired."""
        await self._registry.changes.wait(self._changes_seen, READ_SECONDS)


def _worker(identity: str, text: bytes) -> dict[str, Any]:
    """Return the entry of a worker; only its id if the entry is not a JSON object."""
    try:
        worker = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        worker = None
    return worker if isinstance(worker, dict) else {"id": identity}
