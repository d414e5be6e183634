"""TenantDirectory over a database: all of it in memory, and never older than a quarter of a second.

    poll every 0.25 s -number unchanged--> nothing to do
          |          --number higher-----> the rows that changed since, into the register
          +----------no answer-----------> after some seconds of it away: known keys go on for a time, unknown ones
                                           cannot be judged

The number is read before the rows: what changes meanwhile has a higher one, and is read again. What the settings
file names is the file's: rows of the same name are left out. What it does not name any more may be the database's:
all of it is read again then, and until that is done no key is unknown that may have come to light.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from gateway.database import schema
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.rows import StoredKey
from gateway.database.tenant_store import TenantStore
from gateway.domain.tenant import Tenant
from gateway.settings.tenants import ApiKeySettings
from gateway.tenants.directory import DirectoryUnavailable, UnknownKey
from gateway.tenants.tenant_register import KeyEntry, Names, TenantRegister
from radix_cache.loop_yield import LoopYielder

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
POLL_SECONDS_MAX = 1.5
WHOLE_SECONDS_MAX = 60.0
# One poll that a busy machine made late is no outage; what is known is this much older for as long.
OUTAGE_SECONDS = 5.0
KEYS_MAX = 1_000_000


class SqlDirectory:
    """See TenantDirectory. `register`: what the settings file says; the database's is added.

    `known_seconds_max`: how long keys are taken at their last known word. `upgrades`: tables of an older version
    are brought up to date. `clock`: seconds, never backwards.
    """

    def __init__(
        self,
        register: TenantRegister,
        store: TenantStore,
        *,
        known_seconds_max: float,
        upgrades: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.away = True
        self.loaded = asyncio.Event()
        self.settled = asyncio.Event()
        self._register = register
        self._file_names = register.names()
        self._left_file: Names = {}
        self._store = store
        self._known_seconds_max = known_seconds_max
        self._upgrades = upgrades
        self._clock = clock
        self._wall = wall
        self._seen_at = clock()
        self._number = -1
        self._right_schema = False
        self._full = False
        self._bell = asyncio.Event()

    @property
    def requires_keys(self) -> bool:
        return True

    @property
    def has_tenants(self) -> bool:
        """Also while nobody can say."""
        return self._register.has_tenants or not self.loaded.is_set()

    @property
    def state(self) -> str:
        """For readiness: following, away (known keys go on), stale (they do not), or not loaded."""
        if not self.loaded.is_set():
            return "not loaded"
        return "following" if not self.away else "stale" if self._stale() else "away"

    @property
    def keys(self) -> int:
        """How many are known."""
        return len(self._register)

    def by_key(self, presented: str | None) -> Tenant:
        return self._known(partial(self._register.entry, presented))

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        return self._known(partial(self._register.entry_of, tenant, key_id))

    def _known(self, find: Callable[[], KeyEntry]) -> Tenant:
        try:
            entry = find()
        except UnknownKey:
            if self.away or self._full or any(self._left_file.values()):
                raise DirectoryUnavailable from None
            raise
        if self.away and self._stale() and entry.key.id not in self._file_names["keys"]:
            raise DirectoryUnavailable
        return self._register.tenant_of(entry)

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        if tenant not in self._file_names["tenants"] and (not self.loaded.is_set() or self._stale()):
            raise DirectoryUnavailable
        try:
            return self._register.by_id(tenant, rules)
        except UnknownKey:
            if self.away:
                raise DirectoryUnavailable from None
            raise

    def file_plans(self) -> set[str]:
        """Those that the settings file names now."""
        return self._file_names["plans"]

    def groups(self) -> Sequence[str]:
        return self._register.groups()

    def reconfigure(self, file: TenantRegister) -> None:
        """See FileDirectory."""
        before, self._file_names = self._file_names, file.names()
        gone = {kind: names | self._left_file.get(kind, set()) for kind, names in before.items()}
        self._left_file = names_only_in_first(gone, self._file_names)
        new_tenants = self._file_names["tenants"] - before["tenants"]
        hidden = self._register.keys_of(new_tenants) if new_tenants else set()
        # What else has left goes once the rows are read: a name that moves into the database is there all the time.
        self._register.drop({"keys": names_only_in_first(before, self._file_names)["keys"] | hidden})
        self._register.put_all(file)
        self.poll_now()

    def poll_now(self) -> None:
        """Something has changed: look now."""
        self._bell.set()

    async def wait_until_loaded(self) -> None:
        """Waits until everything is read, or the database turns out to be away; for a bounded time."""
        try:
            await asyncio.wait_for(self.settled.wait(), WHOLE_SECONDS_MAX)
        except TimeoutError:
            log.warning("tenants are not loaded after %g s; keys are refused with a 503", WHOLE_SECONDS_MAX)

    async def run(self) -> None:
        """Follows the database, for as long as the process lives."""
        while True:
            self._bell.clear()
            try:
                await self.refresh()
            except (DatabaseDown, DatabaseConflict, TimeoutError) as err:
                self._lost(err)
            self.settled.set()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._bell.wait()
            except TimeoutError:
                continue

    async def refresh(self) -> None:
        """Everything that has changed. Raises DatabaseDown, TimeoutError."""
        if self._store.database.exists:
            # Only this is bounded as a whole: what there is to read may be much, and every page has its own bound.
            async with asyncio.timeout(POLL_SECONDS_MAX if self._right_schema else None):
                await self._check_schema()
                number = await self._store.number()
            left = self._left_file
            # A number that went back is another database, or one from a backup: nothing known of it holds.
            if number < self._number:
                self._number = -1
                for key in self._register.names()["keys"] - self._file_names["keys"]:
                    self._register.drop_key(key)
            if number != self._number or any(left.values()):
                await self._read(-1 if any(left.values()) else self._number)
                self._number = number
            if left is self._left_file:
                self._drop_unclaimed()
        else:
            self._drop_unclaimed()
        if self.away and self.loaded.is_set():
            log.warning("the database is back: keys are checked as they are now")
        self.away = False
        self._seen_at = self._clock()
        self.loaded.set()

    async def _read(self, since: int) -> None:
        # The file may be read again meanwhile: what counts is what it names now.
        turns, register = LoopYielder(), self._register
        for organisation in await self._store.all_organisations(since):
            if self._is_ours("organisations", organisation.id):
                register.put_organisation(organisation)
        for plan in await self._store.all_plans(since):
            if self._is_ours("plans", plan.name):
                register.put_plan(plan)
        async for tenant in self._store.all_tenants(since):
            if self._is_ours("tenants", tenant.id):
                register.put_tenant(tenant)
            await turns.give()
        async for stored in self._store.all_keys(since):
            self._take(stored)
            await turns.give()

    def _is_ours(self, kind: str, name: str) -> bool:
        """The file does not name it; if it did before, it is here now."""
        self._left_file.get(kind, set()).discard(name)
        return name not in self._file_names[kind]

    def _drop_unclaimed(self) -> None:
        """What the file does not name any more is nobody's."""
        if self._left_file:
            self._register.drop({**self._left_file, "keys": ()})
            self._left_file = {}

    def _take(self, stored: StoredKey) -> None:
        key = stored.key
        if key.id in self._file_names["keys"] or stored.tenant in self._file_names["tenants"]:
            return
        if not stored.active(self._wall()):
            self._register.drop_key(key.id)
        elif len(self._register) < KEYS_MAX:
            self._register.put_key(stored.tenant, key)
        elif not self._full:
            self._full = True
            log.error("there are more than %d keys: the others are refused with a 503", KEYS_MAX)

    async def _check_schema(self) -> None:
        if not self._right_schema:
            await schema.ready(self._store.database, upgrades=self._upgrades)
            self._right_schema = True

    def _stale(self) -> bool:
        return self._clock() - self._seen_at > self._known_seconds_max

    def _lost(self, err: Exception) -> None:
        if self.loaded.is_set() and self._clock() - self._seen_at <= OUTAGE_SECONDS:
            return
        if not self.away or not self.loaded.is_set():
            log.warning("the database is away: %s", str(err) or "it does not answer in time")
        self.away = True
        self._right_schema = False
