"""The one settings tree: every name, its type, its default, and what it means.

`sources.py` fills it from YAML, environment and command line, and `checks.py` looks at the whole;
the README's reference is generated from it. Nothing else reads the environment. Values are frozen: a reload builds
a new tree.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.service_classes import ServiceClassesSettings
from gateway.settings.files import BatchSettings, FileSettings
from gateway.settings.listeners import AdminSettings, ListenSettings
from gateway.settings.models import ModelSettings
from gateway.settings.queueing import QueueingSettings
from gateway.settings.requests import AuthenticationSettings, RequestSettings
from gateway.settings.routing import RoutingSettings
from gateway.settings.stores import DatabaseSettings, IndexSettings, RedisSettings, StoredResponseSettings
from gateway.settings.tenants import OrganisationSettings, PlanSettings, TenantSettings
from gateway.settings.types import (
    Branch,
    FilePath,
    HttpUrl,
    NotNegativeSeconds,
    Ratio,
    Secret,
)
from gateway.settings.usage import UsageSettings, WebhookSettings
from gateway.settings.workers import DiscoverySettings, WorkerSettings


class TelemetrySettings(Branch, frozen=True, kw_only=True):
    """Traces, logs."""

    otlp_endpoint: Annotated[
        HttpUrl | None, Meta(description="OTLP/HTTP collector, as http://host:4318.")
    ] = None
    sample_ratio: Annotated[Ratio, Meta(description="Share of requests that are traced.")] = 0.1
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least level logged.")
    ] = "info"
    access_log: Annotated[
        FilePath | None,
        Meta(
            description="File that gets a JSON line for each request of a tenant, without anything that it said; "
            "`-`: standard output."
        ),
    ] = None


class DrainSettings(Branch, frozen=True, kw_only=True):
    """What happens on SIGTERM."""

    notice_seconds: Annotated[
        NotNegativeSeconds, Meta(description="Not ready, but still serving: balancers notice.")
    ] = 5.0
    seconds: Annotated[NotNegativeSeconds, Meta(description="Streams may finish for so long.")] = 120.0


class Settings(Branch, frozen=True, kw_only=True):
    """The whole tree."""

    listen: Annotated[ListenSettings, Meta(description="Where tenants connect.")] = field(
        default_factory=ListenSettings
    )
    admin: Annotated[AdminSettings, Meta(description="Where operators connect.")] = field(
        default_factory=AdminSettings
    )
    redis: Annotated[RedisSettings, Meta(description="Shared state.")] = field(default_factory=RedisSettings)
    database: Annotated[DatabaseSettings, Meta(description="Tenants and keys.")] = field(
        default_factory=DatabaseSettings
    )
    responses: Annotated[StoredResponseSettings, Meta(description="Stored responses.")] = field(
        default_factory=StoredResponseSettings
    )
    files: Annotated[FileSettings, Meta(description="Files that tenants keep here.")] = field(
        default_factory=FileSettings
    )
    batches: Annotated[BatchSettings, Meta(description="Batches.")] = field(default_factory=BatchSettings)
    state_directory: Annotated[
        FilePath,
        Meta(
            description="Embedded Valkey's append-only file, SQLite file and generated secrets. From the file, and "
            "by default where there is a file, it is relative to the file."
        ),
    ] = "./.radixgate"
    deployment_secret: Annotated[
        Secret | None,
        Meta(
            description="Keys, cache salts and index hashes are derived from it; the same for all gateways. "
            "By default it is generated once into the state directory."
        ),
    ] = None
    models: Annotated[
        tuple[ModelSettings, ...], Meta(description="Models; others are found at the workers.")
    ] = ()
    workers: Annotated[tuple[WorkerSettings, ...], Meta(description="Workers.")] = ()
    discovery: Annotated[
        tuple[DiscoverySettings, ...],
        Meta(description="Where further workers are found, as they come and go."),
    ] = ()
    plans: Annotated[tuple[PlanSettings, ...], Meta(description="Plans.")] = ()
    organisations: Annotated[
        tuple[OrganisationSettings, ...], Meta(description="Organisations that have limits of their own.")
    ] = ()
    tenants: Annotated[
        tuple[TenantSettings, ...],
        Meta(description="Tenants; with none, and on loopback only, everybody is the tenant `default`."),
    ] = ()
    authentication: Annotated[AuthenticationSettings, Meta(description="Who is let in.")] = field(
        default_factory=AuthenticationSettings
    )
    usage: Annotated[UsageSettings, Meta(description="The usage ledger.")] = field(
        default_factory=UsageSettings
    )
    webhooks: Annotated[
        tuple[WebhookSettings, ...], Meta(description="Who is told of usage and budgets.", max_length=100)
    ] = ()
    routing: Annotated[RoutingSettings, Meta(description="Choice of worker.")] = field(
        default_factory=RoutingSettings
    )
    queueing: Annotated[QueueingSettings, Meta(description="Waiting.")] = field(
        default_factory=QueueingSettings
    )
    classes: Annotated[ServiceClassesSettings, Meta(description="Service classes.")] = field(
        default_factory=ServiceClassesSettings
    )
    index: Annotated[IndexSettings, Meta(description="The prefix index.")] = field(
        default_factory=IndexSettings
    )
    requests: Annotated[RequestSettings, Meta(description="Bounds of a request.")] = field(
        default_factory=RequestSettings
    )
    telemetry: Annotated[TelemetrySettings, Meta(description="Traces and logs.")] = field(
        default_factory=TelemetrySettings
    )
    drain: Annotated[DrainSettings, Meta(description="Graceful stop.")] = field(default_factory=DrainSettings)


UNBUILT = {
    "telemetry.record_content": "content recording",
}
"""Names that are promised but have no room behind them yet: refused, with this explanation."""
