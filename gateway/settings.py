"""The one settings tree: every name, its type, its default, and what it means.

`settings_sources.py` fills it from YAML, environment and command line, and `settings_checks.py` looks at the whole;
the README's reference is generated from it. Nothing else reads the environment. Values are frozen: a reload builds
a new tree.
"""

from datetime import date
from ipaddress import ip_address
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field


def _form(words: str) -> dict[str, str]:
    """What a refusal says is accepted here; see settings_messages.py."""
    return {"form": words}


Host = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Identifier = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        extra=_form("1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit"),
    ),
]
HttpUrl = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$",
        extra=_form("an http:// or https:// address without query, as http://host:8000"),
    ),
]
FilePath = Annotated[str, Meta(pattern=r"^[^\x00]+$", extra=_form("a path"))]
Day = Annotated[date, Meta(extra=_form("a day, as 2027-01-31"))]
KeyHash = Annotated[
    str,
    Meta(
        pattern=r"^hmac-sha256:[0-9a-f]{64}$",
        extra=_form("`hmac-sha256:` and 64 hex digits, as `radixgate keys new` and `keys hash` print it"),
    ),
]
RedisUrl = Annotated[
    str,
    Meta(
        pattern=r"^(embedded$|rediss?(\+cluster)?://|unix://)",
        extra=_form("`embedded`, or an address redis://, rediss://, unix:// or redis+cluster://"),
    ),
]
Port = Annotated[int, Meta(ge=0, le=65535, extra=_form("a port, 0 to 65535"))]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
"""At most what Redis and JavaScript count exactly."""
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
NotNegativeSeconds = Annotated[float, Meta(ge=0, le=1e9)]
Ratio = Annotated[float, Meta(ge=0, le=1)]


class SettingsProblem(ValueError):
    """One line: the path of the setting (`$.workers[0].kind`), and what is wrong with it."""


class Secret:
    """Text that does not show itself: not in repr, not in logs, not in `explain-config`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "****"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Branch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A branch of the tree: unknown keys are refused with their path."""


class Listen(Branch, frozen=True, kw_only=True):
    """Where tenants connect."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port; 0 takes a free one.")] = 8000
    unix_socket: Annotated[
        FilePath | None, Meta(description="Path of a unix socket to listen on instead of host and port.")
    ] = None


class Admin(Branch, frozen=True, kw_only=True):
    """Where operators connect: /metrics, /health/live, /health/ready, /ui, /admin/v1."""

    host: Annotated[Host, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port; 0 takes a free one.")] = 8001
    token: Annotated[
        Secret | None,
        Meta(description="Needed for /ui and /admin/v1; without one they answer on loopback addresses only."),
    ] = None


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
        Literal["auto", "off"],
        Meta(description="Follow what the worker publishes of its cache, where it says so."),
    ] = "auto"


class Limit(Branch, frozen=True, kw_only=True):
    """One smooth limit: so much per period, a full bucket at once (GCRA)."""

    requests: Annotated[Positive | None, Meta(description="Requests per period.")] = None
    total_tokens: Annotated[Positive | None, Meta(description="Prompt and output tokens per period.")] = None
    per: Annotated[Literal["second", "minute", "hour", "day"], Meta(description="The period.")] = "minute"

    def __post_init__(self) -> None:
        if (self.requests is None) == (self.total_tokens is None):
            raise ValueError("a limit names one of requests and total_tokens")


class ModelAccess(Branch, frozen=True, kw_only=True):
    """Which models a plan may use; patterns with `*`, deny wins."""

    allow: Annotated[tuple[str, ...], Meta(description="Patterns of allowed model names.")] = ("*",)
    deny: Annotated[tuple[str, ...], Meta(description="Patterns of refused model names.")] = ()


class Plan(Branch, frozen=True, kw_only=True):
    """What a tenant on this plan may use."""

    name: Annotated[Name, Meta(description="Name, as tenants refer to it.")]
    limits: Annotated[tuple[Limit, ...], Meta(description="All of them hold at once.")] = ()
    concurrency: Annotated[Positive | None, Meta(description="Requests at one time.")] = None
    models: Annotated[ModelAccess, Meta(description="Model access.")] = field(default_factory=ModelAccess)
    context_length_max: Annotated[
        Positive | None,
        Meta(
            description="Longest prompt and answer together for this plan. Workers are sent what the prompt leaves "
            "of it as `max_tokens` where the client set none; without a tokenizer both go by the estimate."
        ),
    ] = None


class Isolation(Branch, frozen=True, kw_only=True):
    """Whose cache a tenant's prompts may hit."""

    mode: Annotated[
        Literal["isolated", "group", "shared"],
        Meta(description="`isolated`: the tenant's own; `group`: a named group's; `shared`: everybody's."),
    ] = "isolated"
    group: Annotated[Identifier | None, Meta(description="Name of the group, for mode `group`.")] = None

    def __post_init__(self) -> None:
        if (self.mode == "group") != (self.group is not None):
            raise ValueError("isolation.group goes with mode: group")


class ApiKey(Branch, frozen=True, kw_only=True):
    """One API key, as `radixgate keys new` prints it."""

    id: Annotated[Identifier, Meta(description="Public part of the key.")]
    hash: Annotated[KeyHash, Meta(description="hmac-sha256:HEX.")]
    expires: Annotated[Day | None, Meta(description="Last day of use, as 2027-01-31 (UTC).")] = None


class TenantSettings(Branch, frozen=True, kw_only=True):
    """One tenant."""

    id: Annotated[Identifier, Meta(description="Name in metrics and logs.")]
    organisation: Annotated[
        Identifier | None, Meta(description="Who pays; by default the tenant itself.")
    ] = None
    plan: Annotated[Name | None, Meta(description="Name of a plan; without one nothing is limited.")] = None
    isolation: Annotated[Isolation, Meta(description="Cache isolation.")] = field(default_factory=Isolation)
    keys: Annotated[tuple[ApiKey, ...], Meta(description="API keys.")] = ()


class Routing(Branch, frozen=True, kw_only=True):
    """Which worker serves a request."""

    policy: Annotated[str, Meta(description="Name of a routing policy.")] = "prefix_affinity"
    options: Annotated[
        dict[str, Any], Meta(description="Options of that policy; see the list of policies.")
    ] = field(default_factory=dict)


class Queueing(Branch, frozen=True, kw_only=True):
    """Who waits, and for how long."""

    across: Annotated[str, Meta(description="Name of a queue policy across tenants.")] = "fifo"
    release_window_tokens: Annotated[
        Positive, Meta(description="Uncached prompt tokens that may be on their way to one worker.")
    ] = 16384
    waiting_requests_max: Annotated[Positive, Meta(description="Requests that may wait, per model.")] = 1000
    waiting_seconds_max: Annotated[Seconds, Meta(description="Longest wait for a turn.")] = 30.0


class Index(Branch, frozen=True, kw_only=True):
    """The prefix index."""

    memory_bytes_max: Annotated[Positive, Meta(description="Memory for the index.")] = 2 * 1024**3
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
    state_directory: Annotated[
        FilePath,
        Meta(
            description="Embedded Valkey's append-only file and generated secrets. From the file, and by default "
            "where there is a file, it is relative to the file."
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
    plans: Annotated[tuple[Plan, ...], Meta(description="Plans.")] = ()
    tenants: Annotated[
        tuple[TenantSettings, ...],
        Meta(description="Tenants; with none, and on loopback only, everybody is the tenant `default`."),
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
    "database": "tenants in a database",
    "models.prices": "prices",
    "models.fallbacks": "fallback models",
    "workers.role": "prefill and decode workers",
    "discovery": "discovery of workers",
    "plans.weight": "fair queueing",
    "plans.classes": "service classes",
    "plans.limits.input_tokens": "limits by kind of token",
    "plans.limits.cached_tokens": "limits by kind of token",
    "plans.limits.output_tokens": "limits by kind of token",
    "plans.limits.spend": "spend budgets",
    "plans.limits.reset": "calendar resets",
    "tenants.keys.scopes": "key scopes",
    "routing.shadow": "shadow policies",
    "queueing.within": "queue policies inside a tenant",
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
