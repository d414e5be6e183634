"""TenantDirectory over a database: kept in memory, refreshed four times a second while the database answers.

    poll every 0.25 s -number unchanged--> nothing to do
          |          --number higher-----> read the rows that changed since, into the register
          +----------no answer-----------> after some seconds unavailable: known keys stay valid for a time, unknown
                                           keys get an error to try again (KeysUnavailable)

The number is read before the rows, so that later changes have a higher number and are read again. Names in the
settings file win; rows with the same name are left out. When a name leaves the file, its row may still be in the
database, so everything is read again; until then an unknown key gets KeysUnavailable instead of a refusal.

A gateway that starts while the database is away uses the sealed copy that an earlier gateway has written
(sealed_tenants.py). Its keys are valid for as long as they would be in a gateway that lost its database when the
copy was written. Once the database answers, all rows are read, and entries of the copy without a row are dropped.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from gateway.database import schema
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.row_conversion import StoredKey
from gateway.database.tenant_store import TenantStore
from gateway.domain.tenant import Tenant
from gateway.settings.tenants import ApiKeySettings
from gateway.tenants.directory import DirectoryUnavailable, UnknownKey
from gateway.tenants.sealed_tenants import KEYS_MAX as SEALED_KEYS_MAX
from gateway.tenants.sealed_tenants import SealedTenantStore
from gateway.tenants.tenant_register import KeyEntry, Names, TenantRegister, subtract_names
from radix_cache.loop_yield import LoopYielder

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
POLL_SECONDS_MAX = 1.5
WHOLE_SECONDS_MAX = 60.0
OUTAGE_SECONDS = 5.0
"""How long the database may be silent before it counts as away; longer than one late poll on a busy machine."""

SEAL_SECONDS = 15.0
"""How old the sealed copy may be while the database answers."""

KEYS_MAX = 1_000_000
"""The most keys that are known; if the database has more, an unknown key cannot be judged."""


class SqlDirectory:
    """A ReloadableDirectory of the tenants in settings file and database, which follows changes of both."""

    def __init__(
        self,
        register: TenantRegister,
        store: TenantStore,
        *,
        known_seconds_max: float,
        upgrades: bool = True,
        sealed: SealedTenantStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Prepare a directory that has not read the database yet.

        Args:
            register: Has the content of the settings file; that of the database is added.
            store: The tenants in the database.
            known_seconds_max: How long known keys stay valid while the database does not answer.
            upgrades: Whether tables of an older version are upgraded.
            sealed: Stores the known tenants for the next start; None: they are not stored.
            clock: Monotonic, in seconds.
            wall: Unix time in seconds.
        """
        self.away = True  # the database does not answer
        self.loaded = asyncio.Event()  # the database was read once
        self.attempted = (
            asyncio.Event()
        )  # the first attempt to read the database has ended, successful or not
        self._register = register
        self._file_names = register.names()
        self._left_file: Names = {}  # names that left the file and were not found in the database yet
        self._store = store
        self._known_seconds_max = known_seconds_max
        self._upgrades = upgrades
        self._sealed = sealed
        self._sealed_at = float("-inf")
        self._unconfirmed_keys: set[str] = set()  # of the sealed copy, not yet found in the database
        self._from_sealed = False
        self._clock = clock
        self._wall = wall
        self._seen_at = clock()
        self._number = -1
        self._right_schema = False
        self._full = False
        self._poll_wanted = asyncio.Event()

    @property
    def requires_keys(self) -> bool:
        """Always true."""
        return True

    @property
    def has_tenants(self) -> bool:
        """Whether there is any tenant; also true until the database was read once."""
        return self._register.has_tenants or not self.loaded.is_set()

    @property
    def state(self) -> str:
        """The state for readiness: following, away, stale, or not loaded.

        Away: the database does not answer, and known keys are valid. Stale: known keys have become too old, or come
        from the sealed copy; `usable` has whether they are valid.
        """
        if not self.loaded.is_set():
            return "not loaded"
        if not self.away:
            return "following"
        return "stale" if self._from_sealed or self._stale() else "away"

    @property
    def usable(self) -> bool:
        """Whether known keys are valid."""
        return self.loaded.is_set() and not (self.away and self._stale())

    @property
    def keys(self) -> int:
        """How many keys are known."""
        return len(self._register)

    def by_key(self, presented: str | None) -> Tenant:
        """Return the tenant of a presented key. Raises UnknownKey, DirectoryUnavailable."""
        try:
            entry = self._register.valid_entry(presented)
        except UnknownKey:
            if self._may_know_more():
                raise DirectoryUnavailable from None
            raise
        return self._tenant_of(entry)

    def by_key_id(self, tenant: str, key_id: str) -> Tenant:
        """Return the tenant of one of its keys, found by id. Raises UnknownKey, DirectoryUnavailable."""
        try:
            entry = self._register.entry_of(tenant, key_id)
        except UnknownKey:
            if self._may_know_more():
                raise DirectoryUnavailable from None
            raise
        return self._tenant_of(entry)

    def _may_know_more(self) -> bool:
        """Return whether the database may have keys that are not known here."""
        return self.away or self._full or any(self._left_file.values())

    def _tenant_of(self, entry: KeyEntry) -> Tenant:
        if self.away and self._stale() and entry.key.id not in self._file_names["keys"]:
            raise DirectoryUnavailable
        return self._register.tenant_of(entry)

    def by_id(self, tenant: str, rules: ApiKeySettings) -> Tenant:
        """Return the tenant with that id, with `rules` in place of a key's settings.

        Raises UnknownKey, DirectoryUnavailable.
        """
        if tenant not in self._file_names["tenants"] and (not self.loaded.is_set() or self._stale()):
            raise DirectoryUnavailable
        try:
            return self._register.by_id(tenant, rules)
        except UnknownKey:
            if self.away:
                raise DirectoryUnavailable from None
            raise

    def file_plans(self) -> set[str]:
        """Return the names of the plans in the current settings file."""
        return self._file_names["plans"]

    def file_tenants(self) -> set[str]:
        """Return the ids of the tenants in the current settings file."""
        return self._file_names["tenants"]

    def groups(self) -> Sequence[str]:
        """Return the isolation groups of all tenants that were ever known."""
        return self._register.groups()

    def reconfigure(self, file: TenantRegister) -> None:
        """Replace the content of the settings file by this register."""
        before, self._file_names = self._file_names, file.names()
        gone = {kind: names | self._left_file.get(kind, set()) for kind, names in before.items()}
        self._left_file = subtract_names(gone, self._file_names)
        new_tenants = self._file_names["tenants"] - before["tenants"]
        hidden = self._register.keys_of(new_tenants) if new_tenants else set()
        # Other names that left the file are dropped once the rows are read, so that a name that moves into the
        # database is there all the time.
        self._register.drop({"keys": subtract_names(before, self._file_names)["keys"] | hidden})
        self._register.put_all(file)
        self.poll_now()

    def poll_now(self) -> None:
        """Poll the database at once, since something has changed."""
        self._poll_wanted.set()

    async def wait_until_loaded(self) -> None:
        """Wait, for a bounded time, until everything is read or the database turns out not to answer."""
        try:
            async with asyncio.timeout(WHOLE_SECONDS_MAX):
                await self.attempted.wait()
        except TimeoutError:
            log.warning("tenants are not loaded after %g s; keys are refused with a 503", WHOLE_SECONDS_MAX)

    async def run(self) -> None:
        """Follow the database, until this coroutine is cancelled."""
        while True:
            self._poll_wanted.clear()
            try:
                await self.refresh()
            except (DatabaseDown, DatabaseConflict, TimeoutError) as err:
                self._note_failure(err)
                if not self.loaded.is_set():
                    await self._read_sealed()
            else:
                await self._seal()
            self.attempted.set()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._poll_wanted.wait()
            except TimeoutError:
                continue

    async def refresh(self) -> None:
        """Read everything that has changed. Raises DatabaseDown, DatabaseConflict, TimeoutError."""
        if self._store.database.exists:
            # Only these queries share a time limit. There may be many rows, and every page has its own limit.
            async with asyncio.timeout(POLL_SECONDS_MAX if self._right_schema else None):
                await self._check_schema()
                number = await self._store.last_change()
            left = self._left_file
            # A lower number means another database, or a restored backup, so everything has to be read again.
            if number < self._number:
                self._number = -1
                for key in self._register.names()["keys"] - self._file_names["keys"]:
                    self._register.drop_key(key)
            if number != self._number or any(left.values()):
                await self._read(-1 if any(left.values()) else self._number)
                self._number = number
            if left is self._left_file:  # The settings file did not change while rows were read.
                self._drop_unclaimed()
        else:
            self._drop_unclaimed()
        for key in self._unconfirmed_keys:
            self._register.drop_key(key)
        self._unconfirmed_keys, self._from_sealed = set(), False
        if self.away and self.loaded.is_set():
            log.warning("the database answers again: changes of keys are followed")
        self.away = False
        self._seen_at = self._clock()
        self.loaded.set()

    async def _read(self, since: int) -> None:
        # The settings file may be reloaded meanwhile; its current names count.
        yielder, register = LoopYielder(), self._register
        for organisation in await self._store.stored_organisations(since):
            if self._is_from_database("organisations", organisation.id):
                register.put_organisation(organisation)
        for plan in await self._store.stored_plans(since):
            if self._is_from_database("plans", plan.name):
                register.put_plan(plan)
        async for tenant in self._store.stored_tenants(since):
            if self._is_from_database("tenants", tenant.id):
                register.put_tenant(tenant)
            await yielder.yield_if_due()
        async for stored in self._store.stored_keys(since):
            self._take(stored)
            await yielder.yield_if_due()

    def _is_from_database(self, kind: str, name: str) -> bool:
        """Return whether the name is not in the settings file, and note that it was found in the database."""
        self._left_file.get(kind, set()).discard(name)
        return name not in self._file_names[kind]

    def _drop_unclaimed(self) -> None:
        """Drop the names that left the settings file and are not in the database."""
        if self._left_file:
            self._register.drop({**self._left_file, "keys": ()})
            self._left_file = {}

    async def _read_sealed(self) -> None:
        """Use the sealed copy, if it is not too old."""
        known = await asyncio.to_thread(self._sealed.read) if self._sealed is not None else None
        if known is None:
            return
        age = max(0.0, self._wall() - known.read_at)
        if age > self._known_seconds_max:
            log.warning("the sealed copy of tenants is %.0f s old, too old to be used", age)
            return
        before = self._register.names()
        self._register.put_known(known, self._file_names)
        added = subtract_names(self._register.names(), before)
        self._left_file, self._unconfirmed_keys = {**added, "keys": set()}, added["keys"]
        self._seen_at, self._from_sealed = self._clock() - age, True
        self.loaded.set()
        log.warning("the database is away: tenants and keys are those of %.0f s ago", age)

    async def _seal(self) -> None:
        """Write the sealed copy again, if it is due."""
        if self._sealed is None or self._clock() - self._sealed_at < SEAL_SECONDS:
            return
        self._sealed_at = self._clock()
        if len(self._register) > SEALED_KEYS_MAX:
            return
        known = self._register.known(self._wall(), self._file_names)
        try:
            await asyncio.to_thread(self._sealed.write, known)
        except OSError as err:
            log.warning("the sealed copy of tenants cannot be written: %s", err.strerror)

    def _take(self, stored: StoredKey) -> None:
        key = stored.key
        self._unconfirmed_keys.discard(key.id)
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
            await schema.ensure_current(self._store.database, upgrades=self._upgrades)
            self._right_schema = True

    def _stale(self) -> bool:
        return self._clock() - self._seen_at > self._known_seconds_max

    def _note_failure(self, err: Exception) -> None:
        if self.loaded.is_set() and self._clock() - self._seen_at <= OUTAGE_SECONDS:
            return
        if not self.away or not self.loaded.is_set():
            log.warning("the database does not answer: %s", str(err) or "time limit exceeded")
        self.away = True
        self._right_schema = False
