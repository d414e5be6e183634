"""What a gateway keeps in its database: tenants, usage, responses, files, batches. Each has its own connections."""

import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.database.background_store import BackgroundStore
from gateway.database.batch_store import BatchStore
from gateway.database.database import Database, DatabaseDown
from gateway.database.file_store import FileStore
from gateway.database.response_store import ResponseStore
from gateway.database.tenant_store import TenantStore
from gateway.files.content_store import ContentStore
from gateway.files.directory_store import DirectoryStore
from gateway.files.tenant_files import FileBounds, TenantFiles
from gateway.ledger.ledger import Ledger, Loop
from gateway.settings.database_address import NONE
from gateway.settings.listeners import is_loopback
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.telemetry.batch_counts import BatchCounts
from gateway.tenants.keys import pepper
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.yaml_directory import FileDirectory, OpenUntilTenants, register_from_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """`tenants` is who is asked; the others are None without a database."""

    tenants: FileDirectory
    directory: SqlDirectory | None
    ledger: Ledger | None
    responses: ResponseStore | None
    background: BackgroundStore | None
    tenant_files: TenantFiles | None
    batches: BatchStore | None
    batch_counts: BatchCounts

    @classmethod
    def opened(cls, settings: Settings, secret: bytes, stack: AsyncExitStack) -> "Records":
        """Nothing is connected yet; the stack closes it. Raises SettingsProblem."""
        directory, kept = _directory(settings, secret, stack), _database(settings, stack)
        answers = _database(settings, stack)
        return cls(
            tenants=_tenants(settings, secret, directory),
            directory=directory,
            ledger=_ledger(settings, stack),
            responses=_responses(settings, answers) if answers is not None else None,
            background=BackgroundStore(answers) if answers is not None else None,
            tenant_files=_tenant_files(settings, kept) if kept is not None else None,
            batches=BatchStore(kept, secrets.token_hex(8)) if kept is not None else None,
            batch_counts=BatchCounts(),
        )

    def loops(self) -> Iterator[tuple[str, Loop]]:
        """By the names they are supervised under; the directory's own begins earlier."""
        if self.responses is not None:
            yield "responses", self.responses.run
        if self.tenant_files is not None:
            yield "files", self.tenant_files.run
        if self.ledger is not None:
            yield from self.ledger.loops()


def _tenants(settings: Settings, secret: bytes, database: SqlDirectory | None) -> FileDirectory:
    directory = database if database is not None else register_from_settings(settings, pepper(secret))
    alone = settings.listen.unix_socket is not None or is_loopback(settings.listen.host)
    return OpenUntilTenants(directory) if alone else directory


def _directory(settings: Settings, secret: bytes, stack: AsyncExitStack) -> SqlDirectory | None:
    """What the settings' tenants and the database's are in together."""
    database = _database(settings, stack)
    if database is None:
        return None
    return SqlDirectory(
        register_from_settings(settings, pepper(secret)),
        TenantStore(database),
        known_seconds_max=settings.database.known_keys_seconds_max,
        upgrades=_upgrades(settings, database),
    )


def _ledger(settings: Settings, stack: AsyncExitStack) -> Ledger | None:
    """With connections of its own: what it writes keeps nobody's keys waiting."""
    database = _database(settings, stack)
    if database is None:
        return None
    try:
        ledger = Ledger(settings, database, upgrades=_upgrades(settings, database))
    except OSError as err:
        raise SettingsProblem(f"$.state_directory: the usage journal cannot be made: {err.strerror}") from err
    stack.push_async_callback(ledger.close)
    return ledger


def _responses(settings: Settings, database: Database) -> ResponseStore:
    return ResponseStore(
        database,
        kept_seconds=settings.responses.kept_seconds,
        tenant_responses_max=settings.responses.tenant_responses_max,
    )


def _tenant_files(settings: Settings, database: Database) -> TenantFiles:
    """Raises SettingsProblem."""
    files = settings.files
    contents: ContentStore = DirectoryStore(Path(settings.state_directory) / files.directory)
    if files.s3 is not None:
        try:
            from gateway.files.s3_store import S3ContentStore
        except ModuleNotFoundError as err:
            raise SettingsProblem(
                f"$.files.s3: {err.name} is not installed; pip install 'radixgate[s3]'"
            ) from err
        contents = S3ContentStore(files.s3)
    bounds = FileBounds(
        file_bytes_max=files.file_bytes_max,
        tenant_bytes_max=files.tenant_bytes_max,
        kept_seconds_max=files.kept_seconds_max,
    )
    return TenantFiles(FileStore(database), contents, bounds)


def _database(settings: Settings, stack: AsyncExitStack) -> Database | None:
    if settings.database.url == NONE:
        return None
    try:
        database = Database(settings.database.url, Path(settings.state_directory))
    except DatabaseDown as err:
        raise SettingsProblem(f"$.database.url: {err}") from err
    stack.push_async_callback(database.close)
    return database


def _upgrades(settings: Settings, database: Database) -> bool:
    """May a gateway bring its tables up to date?"""
    upgrade = settings.database.upgrade
    return upgrade == "always" or (upgrade == "auto" and database.file is not None)
