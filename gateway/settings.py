"""The one settings tree: every name, its type, its default, and what it means.

`settings_sources.py` fills it from YAML, environment and command line, and `settings_checks.py` looks at the whole;
the README's reference is generated from it. Nothing else reads the environment. Values are frozen: a reload builds
a new tree.
"""

import re
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from gateway.settings_ledger import UsageLedger, Webhook
from gateway.settings_tenants import OrganisationSettings, Plan, TenantSettings
from gateway.settings_tokens import OperatorIssuer, TokenIssuer
from gateway.settings_types import (
    Branch,
    DatabaseUrl,
    FilePath,
    Host,
    HttpUrl,
    Identifier,
    MediaHost,
    Money,
    Name,
    Network,
    NotNegative,
    NotNegativeSeconds,
    Port,
    Positive,
    Ratio,
    RedisUrl,
    Seconds,
    Secret,
    ZmqUrl,
    form,
)


class Listen(Branch, frozen=True, kw_only=True):
    """Where tenants connect."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port; 0 takes a free one.")] = 8000
    unix_socket: Annotated[
        FilePath | None, Meta(description="Path of a unix socket to listen on instead of host and port.")
    ] = None
    trusted_proxies: Annotated[
        tuple[Network, ...],
        Meta(
            description="Proxies in front of the gateway, as 10.0.0.0/8: who connects through them is whom their "
            "`X-Forwarded-For` names. A unix socket's caller is one."
        ),
    ] = ()
    connections_per_address_max: Annotated[
        Positive,
        Meta(
            description="Connections of one address (IPv6: one /64) at one time; those of proxies do not count."
        ),
    ] = 1000


class Admin(Branch, frozen=True, kw_only=True):
    """Where operators connect: /metrics, /health/live, /health/ready, /ui, /admin/v1."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port; 0 takes a free one.")] = 8001
    token: Annotated[
        Secret | None,
        Meta(description="Needed for /ui and /admin/v1; without one they answer on loopback addresses only."),
    ] = None
    issuers: Annotated[
        tuple[OperatorIssuer, ...],
        Meta(description="Identity providers whose tokens operators may use for /admin/v1.", max_length=10),
    ] = ()


class RedisServer(Branch, frozen=True, kw_only=True):
    """Quotas, leases and the prefix index live here."""

    url: Annotated[
        RedisUrl,
        Meta(
            description="`embedded` starts a private Valkey; or redis://host:6379/0, rediss://, unix:///path; a "
            "cluster is redis+cluster:// or rediss+cluster:// and some of its servers: host:6379,host:6379."
        ),
    ] = "embedded"
    timeout_ms: Annotated[
        Positive, Meta(description="How long a request waits for Redis before it is decided locally.")
    ] = 50
    prefix: Annotated[
        str,
        Meta(
            description="What all keys begin with; another one for each deployment that shares a Redis.",
            pattern="^[A-Za-z0-9:_.-]{1,64}$",
        ),
    ] = "rg"


class DatabaseServer(Branch, frozen=True, kw_only=True):
    """Tenants and keys that are made at run time."""

    url: Annotated[
        DatabaseUrl,
        Meta(
            description="`sqlite:///FILE`, relative to state_directory, or `postgresql://user:password@host/name`; "
            "`none`: tenants come from this file only."
        ),
    ] = "sqlite:///radixgate.db"
    upgrade: Annotated[
        Literal["auto", "always", "never"],
        Meta(
            description="Whether a gateway brings tables up to date by itself, or only `radixgate database "
            "upgrade` does. `auto`: it does for SQLite."
        ),
    ] = "auto"
    known_keys_seconds_max: Annotated[
        NotNegativeSeconds,
        Meta(
            description="How long known keys are still good while the database is away; unknown ones get a 503."
        ),
    ] = 3600.0


class Responses(Branch, frozen=True, kw_only=True):
    """What the Responses API keeps, in the database."""

    kept_seconds: Annotated[
        NotNegativeSeconds,
        Meta(description="How long a response and its conversation can be asked for; 0: nothing is kept."),
    ] = 86400.0
    tenant_responses_max: Annotated[
        Positive, Meta(description="Of one tenant; the oldest make room. All together take at most 256 MiB.")
    ] = 1000


class Prices(Branch, frozen=True, kw_only=True):
    """What a model costs, in money per million tokens."""

    input: Annotated[Money, Meta(description="For a million prompt tokens.")]
    cached_input: Annotated[
        Money | None,
        Meta(description="For a million of those that the worker's cache had; by default `input`."),
    ] = None
    output: Annotated[Money, Meta(description="For a million output tokens.")]


class Model(Branch, frozen=True, kw_only=True):
    """A model that tenants can ask for."""

    name: Annotated[Name, Meta(description="Name in requests, and at the workers.")]
    aliases: Annotated[tuple[Name, ...], Meta(description="Further names for the same model.")] = ()
    tokenizer: Annotated[
        FilePath,
        Meta(
            description="Directory with tokenizer.json (and chat template), or `text`: no tokenizer, "
            "four bytes of canonical text count as a token, and bounds by tokens are estimates."
        ),
    ] = "text"
    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=4096)],
        Meta(description="Tokens per index block; a multiple of each worker's page size."),
    ] = 64
    context_length: Annotated[
        Positive | None,
        Meta(description="Longest prompt and answer together; by default the worker decides."),
    ] = None
    prices: Annotated[
        Prices | None, Meta(description="What its tokens cost; without them it costs nothing.")
    ] = None
    tokenizer_memory_bytes_max: Annotated[
        Positive,
        Meta(description="Memory for the tokens of messages that the tokenizer has seen before."),
    ] = 64 * 1024**2


class KvEventsAt(Branch, frozen=True, kw_only=True):
    """Where a worker publishes its KV events, if its engine does not say: as in its --kv-events-config."""

    endpoint: Annotated[
        ZmqUrl,
        Meta(
            description="Address of rank 0, tcp://host:port; further ranks have the next ports. "
            "tcp://*:port is at the host of the worker's url."
        ),
    ]
    replay_endpoint: Annotated[
        ZmqUrl | None,
        Meta(
            description="Where rank 0 is asked for what was missed. Without one, events that were missed, or "
            "published before a gateway listened, are lost."
        ),
    ] = None
    topic: Annotated[str, Meta(description="Topic, as the engine has it.", max_length=200)] = ""
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=1024)],
        Meta(description="Data-parallel ranks, each with a port of its own."),
    ] = 1


class Worker(Branch, frozen=True, kw_only=True):
    """A serving process."""

    id: Annotated[Identifier, Meta(description="Name of the worker here: letters, digits, `.`, `_`, `-`.")]
    kind: Annotated[
        str, Meta(description="What the worker speaks: sglang, vllm, openai, embedded, or a plug-in's kind.")
    ]
    url: Annotated[HttpUrl, Meta(description="http:// or https:// address.")]
    models: Annotated[
        tuple[Name, ...], Meta(description="Models it serves; by default those it reports.")
    ] = ()
    api_key: Annotated[Secret | None, Meta(description="Sent to the worker as a bearer token.")] = None
    kv_events: Annotated[
        Literal["auto", "off"] | KvEventsAt,
        Meta(
            description="`auto`: follow what the worker publishes of its cache, where it says that it does; `off`: "
            "do not; or where it publishes, for engines that do not say.",
            extra=form("auto, off, or where it publishes: {endpoint: tcp://host:5557}"),
        ),
    ] = "auto"


class Discovery(Branch, frozen=True, kw_only=True):
    """Somewhere else that workers are found, beside `workers`."""

    kind: Annotated[
        Literal["file", "dns", "kubernetes", "redis"],
        Meta(
            description="Where they are found. `redis`: those that register, or that `radixgate workers add` adds."
        ),
    ]
    name: Annotated[
        str, Meta(description="The file, the DNS name, or the Service of Kubernetes.", max_length=1000)
    ] = ""
    namespace: Annotated[str | None, Meta(description="Of the Service; by default the gateway's own.")] = None
    worker_kind: Annotated[str, Meta(description="What they speak (dns, kubernetes).")] = "vllm"
    port: Annotated[
        Port | None, Meta(description="Their port (dns, kubernetes); by default 8000, or the Service's.")
    ] = None
    port_name: Annotated[str | None, Meta(description="Name of the port in the EndpointSlice.")] = None
    models: Annotated[
        tuple[Name, ...], Meta(description="Models they serve; by default those they report.")
    ] = ()
    api_key: Annotated[Secret | None, Meta(description="Sent to them as a bearer token.")] = None
    every_seconds: Annotated[Seconds, Meta(description="How often to look.")] = 5.0

    def worker(self, address: str, port: int, *, name: str | None = None) -> Worker:
        """The settings of the worker at an address. `name`: what it is called; by default after its address."""
        host = f"[{address}]" if ":" in address else address
        called = name or f"{self.name}-{address.replace(':', '-')}"
        return Worker(
            id=re.sub(r"[^A-Za-z0-9._-]", "-", called)[-64:].lstrip("._-"),
            kind=self.worker_kind,
            url=f"http://{host}:{port}",
            models=self.models,
            api_key=self.api_key,
        )


class ShadowPolicy(Branch, frozen=True, kw_only=True):
    """A second policy that ranks every request too; see gateway/dispatch/shadow.py."""

    policy: Annotated[str, Meta(description="Name of the second policy.")]
    options: Annotated[dict[str, Any], Meta(description="Options of the second policy.")] = field(
        default_factory=dict
    )
    share: Annotated[
        float, Meta(ge=0, le=1, description="Share of the requests that the second policy decides.")
    ] = 0.0


class Routing(Branch, frozen=True, kw_only=True):
    """Which worker serves a request."""

    policy: Annotated[str, Meta(description="Name of a routing policy.")] = "cost"
    options: Annotated[
        dict[str, Any], Meta(description="Options of that policy; see the list of policies.")
    ] = field(default_factory=dict)
    shadow: Annotated[
        ShadowPolicy | None,
        Meta(description="A second policy that is compared with it on live requests."),
    ] = None


class TokenCosts(Branch, frozen=True, kw_only=True):
    """What a request costs in the queue: units of work per token."""

    uncached: Annotated[NotNegative, Meta(description="Units of a prompt token that is computed.")] = 1.0
    cached: Annotated[NotNegative, Meta(description="Units of a prompt token that is cached.")] = 0.1
    output: Annotated[NotNegative, Meta(description="Units of an output token.")] = 2.0


class Queueing(Branch, frozen=True, kw_only=True):
    """Who waits, and for how long."""

    across: Annotated[
        str, Meta(description="Name of a queue policy across tenants; `sfq` is kept exactly by all gateways.")
    ] = "sfq"
    options: Annotated[
        dict[str, Any], Meta(description="Options of that policy; see the list of policies.")
    ] = field(default_factory=dict)
    within: Annotated[
        str, Meta(description="Order inside a tenant: `fcfs`, `edf`, `hrrn`, `longest_prefix`.")
    ] = "hrrn"
    costs: Annotated[TokenCosts, Meta(description="What a request costs.")] = field(
        default_factory=TokenCosts
    )
    release_window_tokens: Annotated[
        Positive, Meta(description="Uncached prompt tokens that may be on their way to one worker.")
    ] = 16384
    waiting_requests_max: Annotated[
        Positive, Meta(description="Requests that may wait, per model and gateway.")
    ] = 1000
    waiting_seconds_max: Annotated[Seconds, Meta(description="Longest wait for a turn.")] = 30.0


class Index(Branch, frozen=True, kw_only=True):
    """The prefix index."""

    memory_bytes_max: Annotated[
        Positive,
        Meta(
            description="Memory for the index; half as much again for the caches whose KV events are followed."
        ),
    ] = 2 * 1024**3
    predicted_seconds: Annotated[Seconds, Meta(description="How long a prediction lives unconfirmed.")] = 10.0
    idle_seconds_max: Annotated[Seconds, Meta(description="Unused blocks are forgotten after this.")] = (
        86400.0
    )


class Requests(Branch, frozen=True, kw_only=True):
    """Bounds of one request."""

    body_bytes_max: Annotated[Positive, Meta(description="Largest request body.")] = 32 * 1024**2
    body_seconds_max: Annotated[Seconds, Meta(description="Longest time to send the body.")] = 30.0
    first_token_seconds_max: Annotated[
        Seconds, Meta(description="Longest wait for a worker's first byte.")
    ] = 120.0
    idle_seconds_max: Annotated[Seconds, Meta(description="Longest silence within an answer.")] = 60.0
    attempts_max: Annotated[Positive, Meta(description="Workers tried before the first byte.")] = 3
    repeats_max: Annotated[
        Positive,
        Meta(
            description="How often a request may be made under one `Idempotency-Key`; it is charged once, as much "
            "as the dearest time."
        ),
    ] = 3
    media_hosts: Annotated[
        tuple[MediaHost, ...],
        Meta(
            description="Hosts that images, sounds and videos are fetched from: cdn.example.com, *.example.com; "
            "workers get the content. Without any, media have to come as `data:`."
        ),
    ] = ()
    media_bytes_max: Annotated[
        Positive, Meta(description="Largest fetched media of one request, together.")
    ] = 32 * 1024**2


class Authentication(Branch, frozen=True, kw_only=True):
    """Who is let in."""

    failures_per_minute_max: Annotated[
        Positive, Meta(description="Unknown keys from one address (IPv6: one /64) before it is told to wait.")
    ] = 60
    tokens: Annotated[
        tuple[TokenIssuer, ...], Meta(description="Issuers whose tokens (JWT) are taken in place of keys.")
    ] = ()


class Telemetry(Branch, frozen=True, kw_only=True):
    """Traces, logs."""

    otlp_endpoint: Annotated[
        HttpUrl | None, Meta(description="OTLP/HTTP collector, as http://host:4318.")
    ] = None
    sample_ratio: Annotated[Ratio, Meta(description="Share of requests that are traced.")] = 0.1
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least level logged.")
    ] = "info"


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
    index: Annotated[Index, Meta(description="The prefix index.")] = field(default_factory=Index)
    requests: Annotated[Requests, Meta(description="Bounds of a request.")] = field(default_factory=Requests)
    telemetry: Annotated[Telemetry, Meta(description="Traces and logs.")] = field(default_factory=Telemetry)
    drain: Annotated[Drain, Meta(description="Graceful stop.")] = field(default_factory=Drain)


UNBUILT = {
    "listen.processes": "several processes on one machine",
    "listen.tls": "TLS",
    "models.fallbacks": "fallback models",
    "workers.role": "prefill and decode workers",
    "plans.classes": "service classes",
    "classes": "service classes",
    "telemetry.record_content": "content recording",
}
"""Names that are promised but have no room behind them yet: refused, with this explanation."""


def is_loopback(host: str) -> bool:
    """Is this address reachable from this machine only?"""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
