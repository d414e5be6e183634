"""The tree of all settings, with names, types, defaults and descriptions.

`sources.py` fills the tree from YAML, environment and command line, and `checks/tree_checks.py` checks it; the
reference is generated from it. Nothing else reads the environment. Values are frozen: a reload builds a new tree.
"""

from typing import Annotated

from msgspec import Meta, field

from gateway.settings.files import BatchSettings, FileSettings
from gateway.settings.listeners import AdminSettings, ListenSettings
from gateway.settings.models import ModelSettings
from gateway.settings.queueing import QueueingSettings
from gateway.settings.requests import AuthenticationSettings, RequestSettings
from gateway.settings.routing import RoutingSettings
from gateway.settings.service_classes import ServiceClassesSettings
from gateway.settings.stores import (
    CellSettings,
    DatabaseSettings,
    IndexSettings,
    RedisSettings,
    StoredResponseSettings,
)
from gateway.settings.telemetry import TelemetrySettings
from gateway.settings.tenants import OrganisationSettings, PlanSettings, TenantObjectsSettings, TenantSettings
from gateway.settings.types import (
    Branch,
    FilePath,
    NotNegativeSeconds,
    Secret,
)
from gateway.settings.usage import UsageSettings, WebhookSettings
from gateway.settings.workers import DiscoverySettings, WorkerSettings


class DrainSettings(Branch, frozen=True, kw_only=True):
    """The graceful stop after SIGTERM."""

    notice_seconds: Annotated[
        NotNegativeSeconds,
        Meta(
            description="Time for which requests are still served while /health/ready fails, for load balancers."
        ),
    ] = 5.0
    seconds: Annotated[
        NotNegativeSeconds, Meta(description="Longest time for running requests to finish.")
    ] = 120.0


class Settings(Branch, frozen=True, kw_only=True):
    """The root of the settings tree."""

    listen: Annotated[ListenSettings, Meta(description="Listener for tenants.")] = field(
        default_factory=ListenSettings
    )
    admin: Annotated[AdminSettings, Meta(description="Listener for operators.")] = field(
        default_factory=AdminSettings
    )
    redis: Annotated[RedisSettings, Meta(description="State that all gateways share.")] = field(
        default_factory=RedisSettings
    )
    cells: Annotated[
        CellSettings | None,
        Meta(
            description="The gateway's cell, if several groups of gateways divide the tenants of one fleet. Off by "
            "default."
        ),
    ] = None
    database: Annotated[DatabaseSettings, Meta(description="Database of tenants and keys.")] = field(
        default_factory=DatabaseSettings
    )
    responses: Annotated[StoredResponseSettings, Meta(description="Stored responses.")] = field(
        default_factory=StoredResponseSettings
    )
    files: Annotated[FileSettings, Meta(description="Files that tenants store.")] = field(
        default_factory=FileSettings
    )
    batches: Annotated[BatchSettings, Meta(description="Batches of requests.")] = field(
        default_factory=BatchSettings
    )
    state_directory: Annotated[
        FilePath,
        Meta(
            description="Directory for the SQLite file, the append-only file of the embedded Valkey, and generated "
            "secrets; relative to the settings file, if there is one."
        ),
    ] = "./.radixgate"
    deployment_secret: Annotated[
        Secret | None,
        Meta(
            description="Secret from which hashes of API keys, cache salts and index hashes are derived; the "
            "same for all gateways. By default it is generated once, in the state directory."
        ),
    ] = None
    models: Annotated[
        tuple[ModelSettings, ...], Meta(description="Models; further models are found at the workers.")
    ] = ()
    workers: Annotated[tuple[WorkerSettings, ...], Meta(description="Workers.")] = ()
    discovery: Annotated[
        tuple[DiscoverySettings, ...],
        Meta(description="Sources of further workers, which may change at any time."),
    ] = ()
    plans: Annotated[tuple[PlanSettings, ...], Meta(description="Plans.")] = ()
    organisations: Annotated[
        tuple[OrganisationSettings, ...], Meta(description="Organisations that have limits of their own.")
    ] = ()
    tenants: Annotated[
        tuple[TenantSettings, ...],
        Meta(
            description="Tenants. Without tenants, which is allowed on loopback only, all requests belong to the "
            "tenant `default`."
        ),
    ] = ()
    tenant_objects: Annotated[
        TenantObjectsSettings | None,
        Meta(
            description="Tenants, plans, organisations and keys in objects of the cluster: ConfigMaps with the "
            "label radixgate/tenants, Secrets with the label radixgate/key. Off by default."
        ),
    ] = None
    authentication: Annotated[AuthenticationSettings, Meta(description="Authentication of tenants.")] = field(
        default_factory=AuthenticationSettings
    )
    usage: Annotated[UsageSettings, Meta(description="The usage ledger.")] = field(
        default_factory=UsageSettings
    )
    webhooks: Annotated[
        tuple[WebhookSettings, ...],
        Meta(description="Receivers of events on usage and budgets.", max_length=100),
    ] = ()
    routing: Annotated[RoutingSettings, Meta(description="Choice of a worker for each request.")] = field(
        default_factory=RoutingSettings
    )
    queueing: Annotated[QueueingSettings, Meta(description="Waiting for a worker.")] = field(
        default_factory=QueueingSettings
    )
    classes: Annotated[ServiceClassesSettings, Meta(description="Service classes.")] = field(
        default_factory=ServiceClassesSettings
    )
    index: Annotated[IndexSettings, Meta(description="The prefix index.")] = field(
        default_factory=IndexSettings
    )
    requests: Annotated[RequestSettings, Meta(description="Bounds of one request.")] = field(
        default_factory=RequestSettings
    )
    telemetry: Annotated[TelemetrySettings, Meta(description="Metrics, traces and logs.")] = field(
        default_factory=TelemetrySettings
    )
    drain: Annotated[DrainSettings, Meta(description="Graceful stop.")] = field(default_factory=DrainSettings)


UNBUILT = {
    "telemetry.record_content": "content recording",
}
"""Settings that are planned but not built yet, each with its purpose; they are refused with an error message."""
