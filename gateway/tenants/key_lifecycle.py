"""The life of an API key in the database: created, rotated with a grace period, expired, revoked.

created --rotate--> its successor     the old key ends with the grace period; the successor continues its limits
   +-----expire---> ends at a moment
   +-----revoke---> ends now, for ever

Every gateway follows a change within a quarter of a second, when sql_directory.py next reads what has changed.
New requests with an ended key are refused then; requests accepted before run to their end and are charged.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.database.row_conversion import StoredKey
from gateway.database.tenant_store import TenantChange, TenantStore
from gateway.settings.tenants import ApiKeySettings
from gateway.settings.types import Moment
from gateway.tenants.keys import HASH_PREFIX, NewKey, new_key


class KeyProblem(Exception):
    """The request cannot be carried out; the message is one line with the reason."""


KEY_PLACEHOLDER: Mapping[str, Any] = {"id": "new", "hash": HASH_PREFIX + "0" * 64}
"""Placeholders for id and hash in rules that are checked before their key is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySelection:
    """Keys that were selected to be revoked."""

    ids: tuple[str, ...]
    already: tuple[str, ...]  # the `ids` of keys that have ended or are already revoked


class KeyLifecycle:
    """Creates, rotates, expires and revokes API keys in the database; `wall` is Unix time in seconds.

    Every method raises KeyProblem, DatabaseDown, DatabaseConflict.
    """

    def __init__(self, store: TenantStore, pepper: bytes, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._pepper = pepper
        self._wall = wall

    async def create(self, tenant: str, rules: ApiKeySettings | None = None) -> NewKey:
        """Create a key of a tenant and return it; its text is stored nowhere else.

        `rules` has all settings except id and hash.
        """
        made = new_key(self._pepper)
        async with self._store.change() as change:
            if await change.tenant(tenant) is None:
                raise KeyProblem(f"there is no tenant {tenant!r}")
            await change.put_key(self._stored(tenant, made, rules))
        return made

    async def rotate(self, identity: str, grace_seconds: float = 0.0) -> NewKey:
        """Create another key with the same rules and return it.

        The old key is valid for the grace period, or until its own end if that is earlier.
        """
        made, now = new_key(self._pepper), self._wall()
        async with self._alive(identity) as (change, old):
            ends = Moment.at(now + grace_seconds)
            if old.key.expires is not None and old.key.expires.seconds < ends.seconds:
                ends = old.key.expires
            # The new key keeps the old key's end, not the end of the grace period.
            change.action = "rotate"
            await change.put_key(_with(old, expires=ends))
            change.action = None
            rules = msgspec.structs.replace(old.key, family=old.key.family or old.key.id)
            await change.put_key(self._stored(old.tenant, made, rules))
        return made

    async def expire(self, identity: str, at: Moment) -> None:
        """Set the end of a key, earlier or later than before."""
        async with self._alive(identity) as (change, old):
            change.action = "expire"
            await change.put_key(_with(old, expires=at))

    async def select(self, identities: Sequence[str] | None, tenant: str | None = None) -> KeySelection:
        """Return the named keys, or all active keys of a tenant.

        Raises KeyProblem for a key that does not exist.
        """
        there = {stored.key.id: stored for stored in await self.list_keys(tenant)}
        active = {name for name, stored in there.items() if stored.active(self._wall())}
        if identities is None:
            return KeySelection(ids=tuple(sorted(active)), already=())
        ids = tuple(dict.fromkeys(identities))
        for identity in ids:
            if identity not in there:
                raise KeyProblem(f"there is no key {identity!r}")
        return KeySelection(ids=ids, already=tuple(name for name in ids if name not in active))

    async def revoke(self, identities: Sequence[str]) -> None:
        """Revoke all of these keys, or none if one of them does not exist; a revoked key stays revoked."""
        now = self._wall()
        async with self._store.change() as change:
            change.action = "revoke"
            for identity in identities:
                old = await change.key(identity)
                if old is None:
                    raise KeyProblem(f"there is no key {identity!r}")
                if old.revoked is None:
                    await change.put_key(msgspec.structs.replace(old, revoked=now))

    async def list_keys(self, tenant: str | None = None, *, active: bool = False) -> list[StoredKey]:
        """Return the keys of a tenant, or of all tenants, the oldest first.

        `active`: only keys that are valid now.
        """
        now = self._wall()
        found = [
            stored
            async for stored in self._store.stored_keys()
            if tenant in (None, stored.tenant) and (not active or stored.active(now))
        ]
        return sorted(found, key=lambda stored: (stored.created, stored.key.id))

    @asynccontextmanager
    async def _alive(self, identity: str) -> AsyncIterator[tuple[TenantChange, StoredKey]]:
        """Yield a valid key, and the transaction in which it was read."""
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
