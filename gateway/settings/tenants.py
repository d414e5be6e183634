"""Settings of plans, organisations, tenants and API keys.

Rows of the database are read into the same structs, so that the same rules apply to tenants from any source.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from gateway.settings.service_classes import ClassName
from gateway.settings.types import Branch, Identifier, KeyHash, Moment, Name, Network, Positive, Weight

KeyScope = Literal["inference", "usage", "admin"]

Models = Annotated[tuple[str, ...], Meta(max_length=1000)]

LIMIT_UNITS = (
    "requests",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "total_tokens",
    "spend",
    "concurrency",
)
MICRO = 1_000_000


class LimitSettings(Branch, frozen=True, kw_only=True):
    """A limit: an amount of one unit per period.

    By default it refills evenly, and all of it may be used at once (GCRA). Limits with equal unit, period, reset,
    mode and models are of one kind. Among limits of one kind the smallest is in force; a limit with `until`
    replaces those without, and a tenant's limit replaces that of its plan.
    """

    requests: Annotated[Positive | None, Meta(description="Requests per period.")] = None
    input_tokens: Annotated[Positive | None, Meta(description="Uncached prompt tokens per period.")] = None
    cached_tokens: Annotated[Positive | None, Meta(description="Cached prompt tokens per period.")] = None
    output_tokens: Annotated[Positive | None, Meta(description="Output tokens per period.")] = None
    total_tokens: Annotated[Positive | None, Meta(description="Prompt and output tokens per period.")] = None
    spend: Annotated[
        Annotated[float, Meta(ge=1e-6, le=1e9)] | None,
        Meta(description="Money per period, calculated with the `prices` of models."),
    ] = None
    concurrency: Annotated[
        Positive | None, Meta(description="Simultaneous requests; this unit has no period.")
    ] = None
    per: Annotated[
        Literal["second", "minute", "hour", "day", "week", "month"], Meta(description="Period of the limit.")
    ] = "minute"
    reset: Annotated[
        Literal["smooth", "rolling", "calendar"],
        Meta(
            description="How a used limit recovers. `smooth`: evenly over the period; `rolling`: completely, "
            "one period after its first use; `calendar`: completely, at the start of each period in UTC (weeks "
            "start on Monday). Except with `calendar`, a month has 30 days."
        ),
    ] = "smooth"
    models: Annotated[
        tuple[Name, ...],
        Meta(
            description="Patterns of models; the limit applies to all of them together. Empty: all models.",
            max_length=100,
        ),
    ] = ()
    mode: Annotated[
        Literal["enforce", "soft", "shadow"],
        Meta(
            description="`enforce`: refuse requests beyond the limit; `soft`: count and alert only; `shadow`: only "
            "record which requests would have been refused."
        ),
    ] = "enforce"
    alert_at: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="Used share of the limit at which an alert is sent, once per period. The default with "
            "`soft` is 1."
        ),
    ] = None
    until: Annotated[
        Moment | None,
        Meta(description="End of the limit: its last day in UTC, or a time with its time zone."),
    ] = None

    def __post_init__(self) -> None:
        if sum(getattr(self, unit) is not None for unit in LIMIT_UNITS) != 1:
            raise ValueError(f"a limit names one of {', '.join(LIMIT_UNITS)}")
        if self.concurrency is not None and self.reset != "smooth":
            raise ValueError("concurrency has no period that could be reset")

    @property
    def unit(self) -> str:
        """The unit that the limit counts, one of LIMIT_UNITS."""
        return next(unit for unit in LIMIT_UNITS if getattr(self, unit) is not None)

    @property
    def amount(self) -> int:
        """The amount per period, money in millionths."""
        if self.spend is not None:
            return round(self.spend * MICRO)
        amount: int = getattr(self, self.unit)
        return amount


class ContextLengthSettings(Branch, frozen=True, kw_only=True):
    """A bound on the context length of some models."""

    models: Annotated[tuple[Name, ...], Meta(description="Patterns of models.", min_length=1, max_length=100)]
    max: Annotated[Positive, Meta(description="Largest number of tokens of prompt and answer together.")]


class ModelAccessSettings(Branch, frozen=True, kw_only=True):
    """The models that may be used, as patterns with `*` for names of models (not aliases); `deny` wins."""

    allow: Annotated[Models, Meta(description="Patterns of allowed model names.")] = ("*",)
    deny: Annotated[Models, Meta(description="Patterns of refused model names.")] = ()


class PlanSettings(Branch, frozen=True, kw_only=True):
    """A plan: what the tenants on it may use."""

    name: Annotated[Name, Meta(description="Name by which tenants refer to it.")]
    limits: Annotated[tuple[LimitSettings, ...], Meta(description="Limits, all of which hold at once.")] = ()
    concurrency: Annotated[Positive | None, Meta(description="Largest number of simultaneous requests.")] = (
        None
    )
    weight: Annotated[
        Weight,
        Meta(description="Weight in the fair queue; while all wait, twice the weight gets twice the work."),
    ] = 1.0
    classes: Annotated[
        tuple[ClassName, ...],
        Meta(
            description="Service classes that requests may have; the first is the default. Empty: all, with "
            "`chat` as the default."
        ),
    ] = ()
    models: Annotated[ModelAccessSettings, Meta(description="Models that may be used.")] = field(
        default_factory=ModelAccessSettings
    )
    context_length_max: Annotated[
        Positive | None,
        Meta(
            description="Largest number of tokens of prompt and answer together. If the client sets no "
            "`max_tokens`, workers get what the prompt leaves of this bound. Without a tokenizer both are "
            "estimates."
        ),
    ] = None
    context_lengths: Annotated[
        tuple[ContextLengthSettings, ...],
        Meta(description="Largest number of tokens for some models; the smallest bound holds."),
    ] = ()
    cache_blocks_max: Annotated[
        Positive | None,
        Meta(
            description="Largest number of blocks that a tenant's isolation group has in the prefix index, for all "
            "models together. Beyond it, no further prompts are recorded."
        ),
    ] = None
    without_redis: Annotated[
        Literal["open", "closed"],
        Meta(
            description="Behaviour while Redis is unreachable. `open`: each gateway enforces its share of the "
            "limits; `closed`: requests are refused with a 503."
        ),
    ] = "open"
    overflow: Annotated[
        Literal["allow", "deny"],
        Meta(
            description="Whether prompts may be sent to external providers (`workers[].provider`) if none of your "
            "workers has room for them; they are charged by the provider's prices."
        ),
    ] = "deny"


class IsolationSettings(Branch, frozen=True, kw_only=True):
    """The cached prompts that a tenant's requests may use."""

    mode: Annotated[
        Literal["isolated", "group", "shared"],
        Meta(
            description="Tenants that share cached prompts with this one. `isolated`: none; `group`: those of a "
            "named group; `shared`: all tenants with this mode."
        ),
    ] = "isolated"
    group: Annotated[Identifier | None, Meta(description="Name of the group, with mode `group`.")] = None

    def __post_init__(self) -> None:
        if (self.mode == "group") != (self.group is not None):
            raise ValueError("isolation.group goes with mode: group")


class OrganisationSettings(Branch, frozen=True, kw_only=True):
    """An organisation, which pays for its tenants. It need not be listed if it has no settings of its own."""

    id: Annotated[Identifier, Meta(description="Name by which tenants refer to it.")]
    limits: Annotated[
        tuple[LimitSettings, ...], Meta(description="Limits of all tenants of the organisation together.")
    ] = ()
    concurrency: Annotated[
        Positive | None, Meta(description="Simultaneous requests of all its tenants together.")
    ] = None
    disabled: Annotated[bool, Meta(description="Refuse the requests of all its tenants.")] = False


class ApiKeySettings(Branch, frozen=True, kw_only=True):
    """One API key, as `radixgate keys new` prints it."""

    id: Annotated[Identifier, Meta(description="Public part of the key.")]
    hash: Annotated[
        KeyHash,
        Meta(description="Hash of the key: hmac-sha256:HEX, or sha256:HEX for a key from another gateway."),
    ]
    name: Annotated[Name | None, Meta(description="Description of the key.")] = None
    expires: Annotated[
        Moment | None,
        Meta(description="End of validity: the last day in UTC, or a time with its time zone."),
    ] = None
    scopes: Annotated[
        tuple[KeyScope, ...],
        Meta(description="Allowed use: `inference`, `usage` (reading the tenant's usage), `admin`."),
    ] = ("inference", "usage")
    models: Annotated[
        ModelAccessSettings, Meta(description="Models that may be used, within those of tenant and plan.")
    ] = field(default_factory=ModelAccessSettings)
    addresses: Annotated[
        tuple[Network, ...],
        Meta(description="Address ranges from which the key may be used, such as 10.0.0.0/8; empty: all."),
    ] = ()
    limits: Annotated[
        tuple[LimitSettings, ...], Meta(description="Limits of this key, besides those of the tenant.")
    ] = ()
    concurrency: Annotated[Positive | None, Meta(description="Simultaneous requests of this key.")] = None
    family: Annotated[
        Identifier | None,
        Meta(
            description="Name under which the key's limits are counted, which it shares with the key that it "
            "replaces; by default its id."
        ),
    ] = None
    service_class: Annotated[
        ClassName | None,
        Meta(description="Service class of requests that name none."),
    ] = field(default=None, name="class")
    disabled: Annotated[bool, Meta(description="Refuse the key, as if it did not exist.")] = False


class TenantObjectsSettings(Branch, frozen=True, kw_only=True):
    """Tenants in ConfigMaps and Secrets of the Kubernetes cluster that the gateway runs in."""

    namespace: Annotated[
        str | None,
        Meta(description="Namespace of the objects; by default that of the gateway."),
    ] = None
    keys: Annotated[
        bool,
        Meta(
            description="Whether API keys are read from Secrets. The gateway's account may then read all Secrets "
            "of the namespace, so these Secrets should have a namespace of their own."
        ),
    ] = True


class TenantSettings(Branch, frozen=True, kw_only=True):
    """A tenant: a project of an organisation."""

    id: Annotated[Identifier, Meta(description="Id of the tenant, as in metrics and logs.")]
    organisation: Annotated[
        Identifier | None, Meta(description="Organisation that pays; by default the tenant itself.")
    ] = None
    plan: Annotated[Name | None, Meta(description="Name of the plan; without a plan nothing is limited.")] = (
        None
    )
    limits: Annotated[
        tuple[LimitSettings, ...],
        Meta(description="Limits that replace the plan's limits of the same kind; the plan's others remain."),
    ] = ()
    concurrency: Annotated[
        Positive | None,
        Meta(description="Largest number of simultaneous requests; replaces that of the plan."),
    ] = None
    context_length_max: Annotated[
        Positive | None, Meta(description="Replaces `context_length_max` of the plan.")
    ] = None
    context_lengths: Annotated[
        tuple[ContextLengthSettings, ...],
        Meta(description="Bounds for some models; if there are any, they replace those of the plan."),
    ] = ()
    cache_blocks_max: Annotated[
        Positive | None, Meta(description="Replaces `cache_blocks_max` of the plan.")
    ] = None
    without_redis: Annotated[
        Literal["open", "closed"] | None, Meta(description="Replaces `without_redis` of the plan.")
    ] = None
    overflow: Annotated[
        Literal["allow", "deny"] | None, Meta(description="Replaces `overflow` of the plan.")
    ] = None
    isolation: Annotated[IsolationSettings, Meta(description="Isolation of the prefix cache.")] = field(
        default_factory=IsolationSettings
    )
    models: Annotated[
        ModelAccessSettings, Meta(description="Models that may be used, within those of the plan.")
    ] = field(default_factory=ModelAccessSettings)
    addresses: Annotated[
        tuple[Network, ...],
        Meta(description="Address ranges from which the tenant's keys may be used; empty: all."),
    ] = ()
    disabled: Annotated[bool, Meta(description="Refuse all keys of the tenant with a 403.")] = False
    keys: Annotated[tuple[ApiKeySettings, ...], Meta(description="API keys of the tenant.")] = ()
