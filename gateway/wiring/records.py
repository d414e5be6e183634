"""Makes the stores of tenants, usage, responses, files and batches, with separate database connections."""

import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.database.background_store import BackgroundStore
from gateway.database.batch_store import BatchStore
from gateway.database.conversation_store import ConversationStore
from gateway.database.database import Database, DatabaseDown
from gateway.database.file_store import FileStore
from gateway.database.response_store import ResponseStore
from gateway.database.tenant_store import TenantStore
from gateway.files.content_store import ContentStore
from gateway.files.directory_store import DirectoryStore
from gateway.files.tenant_files import FileBounds, TenantFiles
from gateway.kubernetes.api import ACCOUNT, API, KubernetesApi
from gateway.ledger.ledger import Ledger, Loop
from gateway.settings.database_address import NONE
from gateway.settings.listeners import is_loopback
from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem
from gateway.telemetry.batch_counts import BatchCounts
from gateway.tenants.keys import pepper
from gateway.tenants.kubernetes_directory import KubernetesDirectory
from gateway.tenants.sealed_tenants import SealedTenantStore
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.yaml_directory import OpenUntilTenants, ReloadableDirectory, register_from_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The stores of a gateway; all but `tenants` and `batch_counts` are None without a database."""

    tenants: ReloadableDirectory
    """The directory that requests are authenticated against."""
    objects: KubernetesDirectory | None
    """Adds the tenants of the cluster's objects to `tenants`; None where the settings name none."""
    directory: SqlDirectory | None
    """The tenants of the settings and of the database together; `tenants` reads it where it exists."""
    ledger: Ledger | None
    responses: ResponseStore | None
    conversations: ConversationStore | None
    background: BackgroundStore | None
    """Responses that are made in the background."""
    tenant_files: TenantFiles | None
    batches: BatchStore | None
    batch_counts: BatchCounts

    @classmethod
    def create(cls, settings: Settings, secret: bytes, stack: AsyncExitStack) -> "Records":
        """Make the stores, which connect later and are closed by the stack. Raises SettingsProblem."""
        directory = _directory(settings, secret, stack)
        files_database, responses_database = _database(settings, stack), _database(settings, stack)
        tenants = _tenants(settings, secret, directory)
        return cls(
            tenants=tenants,
            objects=_objects(settings, secret, tenants),
            directory=directory,
            ledger=_ledger(settings, stack),
            responses=_responses(settings, responses_database) if responses_database is not None else None,
            conversations=_conversations(settings, responses_database)
            if responses_database is not None
            else None,
            background=BackgroundStore(responses_database) if responses_database is not None else None,
            tenant_files=_tenant_files(settings, files_database) if files_database is not None else None,
            batches=BatchStore(files_database, secrets.token_hex(8)) if files_database is not None else None,
            batch_counts=BatchCounts(),
        )

    def loops(self) -> Iterator[tuple[str, Loop]]:
        """Yield the background loops with their names; the loop of the directory is started earlier."""
        if self.objects is not None:
            yield "tenant objects", self.objects.run
        if self.responses is not None:
            yield "responses", self.responses.run
        if self.conversations is not None:
            yield "conversations", self.conversations.run
        if self.tenant_files is not None:
            yield "files", self.tenant_files.run
        if self.ledger is not None:
            yield from self.ledger.loops()


def _tenants(settings: Settings, secret: bytes, database: SqlDirectory | None) -> ReloadableDirectory:
    directory = database if database is not None else register_from_settings(settings, pepper(secret))
    local_only = settings.listen.unix_socket is not None or is_loopback(settings.listen.host)
    return OpenUntilTenants(directory) if local_only else directory


def _objects(settings: Settings, secret: bytes, tenants: ReloadableDirectory) -> KubernetesDirectory | None:
    if settings.tenant_objects is None:
        return None
    own_pepper = pepper(secret)
    api = KubernetesApi(API, ACCOUNT)
    file = register_from_settings(settings, own_pepper)
    return KubernetesDirectory(settings.tenant_objects, api, tenants, file, own_pepper)


def _directory(settings: Settings, secret: bytes, stack: AsyncExitStack) -> SqlDirectory | None:
    """Return the directory of the tenants of the settings and of the database; None without a database."""
    database = _database(settings, stack)
    if database is None:
        return None
    return SqlDirectory(
        register_from_settings(settings, pepper(secret)),
        TenantStore(database),
        known_seconds_max=settings.database.known_keys_seconds_max,
        upgrades=_upgrades(settings, database),
        sealed=SealedTenantStore(Path(settings.state_directory) / "tenants.sealed", secret),
    )


def _ledger(settings: Settings, stack: AsyncExitStack) -> Ledger | None:
    """Return the ledger; it has its own connections, so that its writes do not delay key look-ups."""
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


def _conversations(settings: Settings, database: Database) -> ConversationStore:
    return ConversationStore(
        database,
        kept_seconds=settings.responses.kept_seconds,
        tenant_conversations_max=settings.responses.tenant_responses_max,
    )


def _tenant_files(settings: Settings, database: Database) -> TenantFiles:
    """Return the store of tenants' files, on disk or in S3. Raises SettingsProblem."""
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
    """Return whether the gateway may upgrade its database tables."""
    upgrade = settings.database.upgrade
    return upgrade == "always" or (upgrade == "auto" and database.file is not None)
