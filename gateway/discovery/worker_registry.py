"""Workers in Redis: those that registered themselves or were added by hand, and whom an operator drains.

    {rg:workers}:ids            set of the ids
    {rg:workers}:at:<id>        JSON of one worker; expires unless it was added by hand
    {rg:workers}:draining       set of ids that get no new requests, wherever they were found

Every gateway looks once a second, so that a worker that is drained once is drained everywhere, also in gateways
that start later.
"""

import logging
from collections.abc import Iterable
from typing import Any

import orjson

from gateway.discovery.file import parse_worker
from gateway.discovery.source import SourceUnavailable
from gateway.settings.workers import WorkerSettings
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LEASE_SECONDS = 15
WORKERS_MAX = 10_000


class WorkerRegistry:
    """Raises RedisDown from everything."""

    def __init__(self, redis: ScriptCaller, prefix: str) -> None:
        self._redis = redis
        self._tag = f"{{{prefix}:workers}}"

    async def registered(self) -> list[dict[str, Any]]:
        """Workers as they were put; of those whose lease has ended the id is dropped."""
        ids = sorted(await self._redis.ask("SMEMBERS", f"{self._tag}:ids"))[:WORKERS_MAX]
        if not ids:
            return []
        texts = await self._redis.ask("MGET", *(f"{self._tag}:at:{one.decode()}" for one in ids))
        gone = [one for one, text in zip(ids, texts, strict=True) if text is None]
        if gone:
            await self._drop(gone)
        return [_worker(one.decode(), text) for one, text in zip(ids, texts, strict=True) if text is not None]

    async def _drop(self, gone: list[bytes]) -> None:
        """Who was put between the two looks stays: one that is added by hand is put only once."""
        await self._redis.ask("SREM", f"{self._tag}:ids", *gone)
        texts = await self._redis.ask("MGET", *(f"{self._tag}:at:{one.decode()}" for one in gone))
        if back := [one for one, text in zip(gone, texts, strict=True) if text is not None]:
            await self._redis.ask("SADD", f"{self._tag}:ids", *back)

    async def workers(self) -> tuple[list[WorkerSettings], dict[str, str]]:
        """Those that can be understood, and why others cannot: gateways of other versions may have more to say."""
        found: list[WorkerSettings] = []
        refused: dict[str, str] = {}
        for one in await self.registered():
            try:
                found.append(parse_worker(one))
            except SourceUnavailable as err:
                refused[str(one.get("id"))[:100]] = str(err)
        return found, refused

    async def put(self, worker: dict[str, Any], *, lease_seconds: int | None) -> None:
        """`lease_seconds`: until it is gone unless put again; None: until it is removed."""
        name, text = f"{self._tag}:at:{worker['id']}", orjson.dumps(worker)
        lease = () if lease_seconds is None else ("PX", lease_seconds * 1000)
        await self._redis.ask("SET", name, text, *lease)
        await self._redis.ask("SADD", f"{self._tag}:ids", worker["id"])

    async def remove(self, worker: str) -> bool:
        """Was it there?"""
        await self._redis.ask("SREM", f"{self._tag}:ids", worker)
        return bool(await self._redis.ask("DEL", f"{self._tag}:at:{worker}"))

    async def draining(self) -> frozenset[str]:
        """Ids of workers that an operator drains."""
        return frozenset(one.decode() for one in await self._redis.ask("SMEMBERS", f"{self._tag}:draining"))

    async def drain(self, workers: Iterable[str]) -> None:
        await self._redis.ask("SADD", f"{self._tag}:draining", *workers)

    async def resume(self, workers: Iterable[str]) -> None:
        await self._redis.ask("SREM", f"{self._tag}:draining", *workers)


class RedisSource:
    """Those that are registered. One that is not understood keeps no other from coming and going."""

    name = "registry in Redis"
    seconds = LOOK_SECONDS

    def __init__(self, registry: WorkerRegistry) -> None:
        self._registry = registry
        self._refused: dict[str, str] = {}

    async def find(self) -> list[WorkerSettings]:
        try:
            found, refused = await self._registry.workers()
        except RedisDown as err:
            raise SourceUnavailable(f"Redis does not answer: {err}") from err
        for worker, why in refused.items():
            if self._refused.get(worker) != why:
                log.warning("worker %s is registered, but not understood: %s", worker, why)
        self._refused = refused
        return found


def _worker(identity: str, text: bytes) -> dict[str, Any]:
    """As it was put; what is no JSON object has nothing but its id."""
    try:
        worker = orjson.loads(text)
    except orjson.JSONDecodeError:
        worker = None
    return worker if isinstance(worker, dict) else {"id": identity}
