"""The life of a key in the database: made, replaced with a grace period, ended, revoked.

created --rotate--> its successor     the old one ends when the grace period does; limits go on
   +-----expire---> ends at a moment
   +-----revoke---> ends now, for ever
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.database.rows import StoredKey
from gateway.database.tenant_store import Change, TenantStore
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.types import Moment
from gateway.tenants.keys import HASH_PREFIX, NewKey, new_key


class KeyProblem(Exception):
    """What was asked cannot be done; one line says why."""


UNMADE: Mapping[str, Any] = {"id": "new", "hash": HASH_PREFIX + "0" * 64}
"""Stands in rules for what only a key that is made has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Keys that somebody means to end. `already`: those of them that are of no use any more."""

    ids: tuple[str, ...]
    already: tuple[str, ...]


class KeyLife:
    """`wall`: Unix time in seconds. Every method raises KeyProblem, DatabaseDown, DatabaseConflict."""

    def __init__(self, store: TenantStore, pepper: bytes, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._pepper = pepper
        self._wall = wall

    async def create(self, tenant: str, rules: ApiKeySettings | None = None) -> NewKey:
        """A new key of a tenant; its text is nowhere but in the answer. `rules`: all but its id and hash."""
        made = new_key(self._pepper)
        async with self._store.change() as change:
            if await change.tenant(tenant) is None:
                raise KeyProblem(f"there is no tenant {tenant!r}")
            await change.put_key(self._stored(tenant, made, rules))
        return made

    async def rotate(self, identity: str, grace_seconds: float = 0.0) -> NewKey:
        """Another key with the same rules. The old one is good for the grace period, or until its own end."""
        made, now = new_key(self._pepper), self._wall()
        async with self._alive(identity) as (change, old):
            ends = Moment.at(now + grace_seconds)
            if old.key.expires is not None and old.key.expires.seconds < ends.seconds:
                ends = old.key.expires
            # First the old one: the new one takes its end, and not the grace period's.
            change.action = "rotate"
            await change.put_key(_with(old, expires=ends))
            change.action = None
            rules = msgspec.structs.replace(old.key, family=old.key.family or old.key.id)
            await change.put_key(self._stored(old.tenant, made, rules))
        return made

    async def expire(self, identity: str, at: Moment) -> None:
        """It ends at that moment, earlier or later than it would have."""
        async with self._alive(identity) as (change, old):
            change.action = "expire"
            await change.put_key(_with(old, expires=at))

    async def chosen(self, identities: Sequence[str] | None, tenant: str | None = None) -> Chosen:
        """Those that are named, or all active ones of a tenant. Raises KeyProblem for one that does not exist."""
        there = {stored.key.id: stored for stored in await self.of(tenant)}
        active = {name for name, stored in there.items() if stored.active(self._wall())}
        if identities is None:
            return Chosen(ids=tuple(sorted(active)), already=())
        ids = tuple(dict.fromkeys(identities))
        for identity in ids:
            if identity not in there:
                raise KeyProblem(f"there is no key {identity!r}")
        return Chosen(ids=ids, already=tuple(name for name in ids if name not in active))

    async def revoke(self, identities: Sequence[str]) -> None:
        """All of them, or none where one of them does not exist. Those that are revoked stay so."""
        now = self._wall()
        async with self._store.change() as change:
            change.action = "revoke"
            for identity in identities:
                old = await change.key(identity)
                if old is None:
                    raise KeyProblem(f"there is no key {identity!r}")
                if old.revoked is None:
                    await change.put_key(msgspec.structs.replace(old, revoked=now))

    async def of(self, tenant: str | None = None, *, active: bool = False) -> list[StoredKey]:
        """Those of a tenant, or of all; the oldest first. `active`: only those that may be used now."""
        now = self._wall()
        found = [
            stored
            async for stored in self._store.all_keys()
            if tenant in (None, stored.tenant) and (not active or stored.active(now))
        ]
        return sorted(found, key=lambda stored: (stored.created, stored.key.id))

    @asynccontextmanager
    async def _alive(self, identity: str) -> AsyncIterator[tuple[Change, StoredKey]]:
        """A key that may be used, and the change that it is read in."""
        async with self._store.change() as change:
            old = await change.key(identity)
            if old is None:
                raise KeyProblem(f"there is no key {identity!r}")
            if not old.active(self._wall()):
                raise KeyProblem(f"the key {identity!r} has ended or is revoked")
            yield change, old

    def _stored(self, tenant: str, made: NewKey, rules: ApiKeySettings | None) -> StoredKey:
        key = ApiKeySettings(id=made.id, hash=made.hash)
        if rules is not None:
            key = msgspec.structs.replace(rules, id=made.id, hash=made.hash)
        return StoredKey(tenant=tenant, key=key, created=self._wall())


def _with(stored: StoredKey, *, expires: Moment) -> StoredKey:
    return msgspec.structs.replace(stored, key=msgspec.structs.replace(stored.key, expires=expires))
