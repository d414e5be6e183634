"""The one settings tree: every name, its type, its default, and what it means.

`sources.py` fills it from YAML, environment and command line, and `checks.py` looks at the whole;
the README's reference is generated from it. Nothing else reads the environment. Values are frozen: a reload builds
a new tree.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.classes import Classes
from gateway.settings.files import Batches, Files
from gateway.settings.listeners import Admin, Listen
from gateway.settings.models import Model
from gateway.settings.queueing import Queueing
from gateway.settings.requests import Authentication, Requests
from gateway.settings.routing import Routing
from gateway.settings.stores import DatabaseServer, Index, RedisServer, Responses
from gateway.settings.tenants import OrganisationSettings, Plan, TenantSettings
from gateway.settings.types import (
    Branch,
    FilePath,
    HttpUrl,
    NotNegativeSeconds,
    Ratio,
    Secret,
)
from gateway.settings.usage import UsageLedger, Webhook
from gateway.settings.workers import Discovery, Worker


class Telemetry(Branch, frozen=True, kw_only=True):
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


class Drain(Branch, frozen=True, kw_only=True):
    """What happens on SIGTERM."""

    notice_seconds: Annotated[
        NotNegativeSeconds, Meta(description="Not ready, but still serving: balancers notice.")
    ] = 5.0
    seconds: Annotated[NotNegativeSeconds, Meta(description="Streams may finish for so long.")] = 120.0


class Settings(Branch, frozen=True, kw_only=True):
    """The whole tree."""

    listen: Annotated[Listen, Meta(description="Where tenants connect.")] = field(default_factory=Listen)
    admin: Annotated[Admin, Meta(description="Where operators connect.")] = field(default_factory=Admin)
    redis: Annotated[RedisServer, Meta(description="Shared state.")] = field(default_factory=RedisServer)
    database: Annotated[DatabaseServer, Meta(description="Tenants and keys.")] = field(
        default_factory=DatabaseServer
    )
    responses: Annotated[Responses, Meta(description="Stored responses.")] = field(default_factory=Responses)
    files: Annotated[Files, Meta(description="Files that tenants keep here.")] = field(default_factory=Files)
    batches: Annotated[Batches, Meta(description="Batches.")] = field(default_factory=Batches)
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
    models: Annotated[tuple[Model, ...], Meta(description="Models; others are found at the workers.")] = ()
    workers: Annotated[tuple[Worker, ...], Meta(description="Workers.")] = ()
    discovery: Annotated[
        tuple[Discovery, ...], Meta(description="Where further workers are found, as they come and go.")
    ] = ()
    plans: Annotated[tuple[Plan, ...], Meta(description="Plans.")] = ()
    organisations: Annotated[
        tuple[OrganisationSettings, ...], Meta(description="Organisations that have limits of their own.")
    ] = ()
    tenants: Annotated[
        tuple[TenantSettings, ...],
        Meta(description="Tenants; with none, and on loopback only, everybody is the tenant `default`."),
    ] = ()
    authentication: Annotated[Authentication, Meta(description="Who is let in.")] = field(
        default_factory=Authentication
    )
    usage: Annotated[UsageLedger, Meta(description="The usage ledger.")] = field(default_factory=UsageLedger)
    webhooks: Annotated[
        tuple[Webhook, ...], Meta(description="Who is told of usage and budgets.", max_length=100)
    ] = ()
    routing: Annotated[Routing, Meta(description="Choice of worker.")] = field(default_factory=Routing)
    queueing: Annotated[Queueing, Meta(description="Waiting.")] = field(default_factory=Queueing)
    classes: Annotated[Classes, Meta(description="Service classes.")] = field(default_factory=Classes)
    index: Annotated[Index, Meta(description="The prefix index.")] = field(default_factory=Index)
    requests: Annotated[Requests, Meta(description="Bounds of a request.")] = field(default_factory=Requests)
    telemetry: Annotated[Telemetry, Meta(description="Traces and logs.")] = field(default_factory=Telemetry)
    drain: Annotated[Drain, Meta(description="Graceful stop.")] = field(default_factory=Drain)


UNBUILT = {
    "telemetry.record_content": "content recording",
}
"""Names that are promised but have no room behind them yet: refused, with this explanation."""
