"""The branches of the settings tree that say who may use what: plans, organisations, tenants, keys.

They are also what a database's rows are read into: one shape, one set of rules, wherever tenants come from.
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
    """So much of one unit per period. Without `reset` it is smooth: all of it at once, refilled evenly (GCRA).

    Limits of one unit, period, reset, mode and models are of one kind: of these the smallest holds; one with
    `until` takes the place of those without, and a tenant's that of its plan's.
    """

    requests: Annotated[Positive | None, Meta(description="Requests per period.")] = None
    input_tokens: Annotated[
        Positive | None, Meta(description="Prompt tokens per period that no cache had.")
    ] = None
    cached_tokens: Annotated[
        Positive | None, Meta(description="Prompt tokens per period that the worker's cache had.")
    ] = None
    output_tokens: Annotated[Positive | None, Meta(description="Output tokens per period.")] = None
    total_tokens: Annotated[Positive | None, Meta(description="Prompt and output tokens per period.")] = None
    spend: Annotated[
        Annotated[float, Meta(ge=1e-6, le=1e9)] | None,
        Meta(description="Money per period, by the models' `prices`."),
    ] = None
    concurrency: Annotated[Positive | None, Meta(description="Requests at one time; has no period.")] = None
    per: Annotated[
        Literal["second", "minute", "hour", "day", "week", "month"], Meta(description="The period.")
    ] = "minute"
    reset: Annotated[
        Literal["smooth", "rolling", "calendar"],
        Meta(
            description="`calendar`: all of it anew with each period of UTC, weeks from Monday; `rolling`: a "
            "period after its first use; a month has 30 days where it is not the calendar's."
        ),
    ] = "smooth"
    models: Annotated[
        tuple[Name, ...],
        Meta(description="Patterns of models that it is for, all together; none: for all.", max_length=100),
    ] = ()
    mode: Annotated[
        Literal["enforce", "soft", "shadow"],
        Meta(
            description="`soft`: counts and alerts, and refuses nobody; `shadow`: tells what it would have "
            "refused, and refuses nobody."
        ),
    ] = "enforce"
    alert_at: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Share of it at whose use there is an alert, once a period; `soft`: 1 by default."),
    ] = None
    until: Annotated[
        Moment | None, Meta(description="Holds only until then; last day (UTC), or a moment with its zone.")
    ] = None

    def __post_init__(self) -> None:
        if sum(getattr(self, unit) is not None for unit in LIMIT_UNITS) != 1:
            raise ValueError(f"a limit names one of {', '.join(LIMIT_UNITS)}")
        if self.concurrency is not None and self.reset != "smooth":
            raise ValueError("concurrency has no period that could be reset")

    @property
    def unit(self) -> str:
        return next(unit for unit in LIMIT_UNITS if getattr(self, unit) is not None)

    @property
    def amount(self) -> int:
        """Money in millionths."""
        if self.spend is not None:
            return round(self.spend * MICRO)
        given: int = getattr(self, self.unit)
        return given


class ContextLengthSettings(Branch, frozen=True, kw_only=True):
    """A bound on the context of some models."""

    models: Annotated[tuple[Name, ...], Meta(description="Patterns of models.", min_length=1, max_length=100)]
    max: Annotated[Positive, Meta(description="Longest prompt and answer together.")]


class ModelAccessSettings(Branch, frozen=True, kw_only=True):
    """Which models may be used; patterns with `*` over the models' own names, deny wins."""

    allow: Annotated[Models, Meta(description="Patterns of allowed model names.")] = ("*",)
    deny: Annotated[Models, Meta(description="Patterns of refused model names.")] = ()


class PlanSettings(Branch, frozen=True, kw_only=True):
    """What a tenant on this plan may use."""

    name: Annotated[Name, Meta(description="Name, as tenants refer to it.")]
    limits: Annotated[tuple[LimitSettings, ...], Meta(description="All of them hold at once.")] = ()
    concurrency: Annotated[Positive | None, Meta(description="Requests at one time.")] = None
    weight: Annotated[
        Weight, Meta(description="Share in the fair queue: twice the weight, twice the work when all wait.")
    ] = 1.0
    classes: Annotated[
        tuple[ClassName, ...],
        Meta(
            description="Service classes that may be asked for, the first where nobody says otherwise; none: all, "
            "and `chat`."
        ),
    ] = ()
    models: Annotated[ModelAccessSettings, Meta(description="Model access.")] = field(
        default_factory=ModelAccessSettings
    )
    context_length_max: Annotated[
        Positive | None,
        Meta(
            description="Longest prompt and answer together for this plan. Workers are sent what the prompt leaves "
            "of it as `max_tokens` where the client set none; without a tokenizer both go by the estimate."
        ),
    ] = None
    context_lengths: Annotated[
        tuple[ContextLengthSettings, ...], Meta(description="The same for some models; the least holds.")
    ] = ()
    cache_blocks_max: Annotated[
        Positive | None,
        Meta(
            description="Blocks of the prefix index that a tenant's isolation group may have, over all models: "
            "beyond that no further paths of its are recorded."
        ),
    ] = None
    without_redis: Annotated[
        Literal["open", "closed"],
        Meta(
            description="While Redis is away: `open` goes on, each gateway with its share of the limits; `closed` "
            "refuses with a 503."
        ),
    ] = "open"
    overflow: Annotated[
        Literal["allow", "deny"],
        Meta(
            description="`allow`: its prompts may go to providers outside (`workers[].provider`) where no worker "
            "here takes them, and are charged by their prices."
        ),
    ] = "deny"


class IsolationSettings(Branch, frozen=True, kw_only=True):
    """Whose cache a tenant's prompts may hit."""

    mode: Annotated[
        Literal["isolated", "group", "shared"],
        Meta(description="`isolated`: the tenant's own; `group`: a named group's; `shared`: everybody's."),
    ] = "isolated"
    group: Annotated[Identifier | None, Meta(description="Name of the group, for mode `group`.")] = None

    def __post_init__(self) -> None:
        if (self.mode == "group") != (self.group is not None):
            raise ValueError("isolation.group goes with mode: group")


class OrganisationSettings(Branch, frozen=True, kw_only=True):
    """Who pays for one or several tenants. One that has nothing of its own need not be listed."""

    id: Annotated[Identifier, Meta(description="Name, as tenants refer to it.")]
    limits: Annotated[tuple[LimitSettings, ...], Meta(description="For all its tenants together.")] = ()
    concurrency: Annotated[Positive | None, Meta(description="Requests at one time, all together.")] = None
    disabled: Annotated[bool, Meta(description="Refuse all its tenants.")] = False


class ApiKeySettings(Branch, frozen=True, kw_only=True):
    """One API key, as `radixgate keys new` prints it."""

    id: Annotated[Identifier, Meta(description="Public part of the key.")]
    hash: Annotated[
        KeyHash, Meta(description="hmac-sha256:HEX; or sha256:HEX, for a key from another gateway.")
    ]
    name: Annotated[Name | None, Meta(description="What it is for, in your words.")] = None
    expires: Annotated[
        Moment | None, Meta(description="Last day of use (UTC), or the moment of its end with its zone.")
    ] = None
    scopes: Annotated[
        tuple[KeyScope, ...],
        Meta(description="What it may be used for: `inference`, `usage` (reading one's own), `admin`."),
    ] = ("inference", "usage")
    models: Annotated[
        ModelAccessSettings, Meta(description="Model access; within that of tenant and plan.")
    ] = field(default_factory=ModelAccessSettings)
    addresses: Annotated[
        tuple[Network, ...], Meta(description="Where it may be used from, as 10.0.0.0/8; empty: anywhere.")
    ] = ()
    limits: Annotated[
        tuple[LimitSettings, ...], Meta(description="For this key, within those of the tenant.")
    ] = ()
    concurrency: Annotated[Positive | None, Meta(description="Requests of this key at one time.")] = None
    family: Annotated[
        Identifier | None,
        Meta(
            description="Name its limits are counted under, for a key that replaces another; by default its id."
        ),
    ] = None
    service_class: Annotated[
        ClassName | None,
        Meta(description="Service class of its requests that name none."),
    ] = field(default=None, name="class")
    disabled: Annotated[bool, Meta(description="Refuse it, as if it did not exist.")] = False


class TenantSettings(Branch, frozen=True, kw_only=True):
    """One tenant: a project of an organisation."""

    id: Annotated[Identifier, Meta(description="Name in metrics and logs.")]
    organisation: Annotated[
        Identifier | None, Meta(description="Who pays; by default the tenant itself.")
    ] = None
    plan: Annotated[Name | None, Meta(description="Name of a plan; without one nothing is limited.")] = None
    limits: Annotated[
        tuple[LimitSettings, ...],
        Meta(description="In place of the plan's of the same kind, and besides all others."),
    ] = ()
    concurrency: Annotated[
        Positive | None, Meta(description="Requests at one time, in place of the plan's.")
    ] = None
    context_length_max: Annotated[Positive | None, Meta(description="In place of the plan's.")] = None
    context_lengths: Annotated[
        tuple[ContextLengthSettings, ...],
        Meta(description="For some models; in place of the plan's, if there are any."),
    ] = ()
    cache_blocks_max: Annotated[Positive | None, Meta(description="In place of the plan's.")] = None
    without_redis: Annotated[
        Literal["open", "closed"] | None, Meta(description="In place of the plan's.")
    ] = None
    overflow: Annotated[Literal["allow", "deny"] | None, Meta(description="In place of the plan's.")] = None
    isolation: Annotated[IsolationSettings, Meta(description="Cache isolation.")] = field(
        default_factory=IsolationSettings
    )
    models: Annotated[ModelAccessSettings, Meta(description="Model access; within that of the plan.")] = (
        field(default_factory=ModelAccessSettings)
    )
    addresses: Annotated[
        tuple[Network, ...], Meta(description="Where its keys may be used from; empty: anywhere.")
    ] = ()
    disabled: Annotated[bool, Meta(description="Refuse all its keys with a 403.")] = False
    keys: Annotated[tuple[ApiKeySettings, ...], Meta(description="API keys.")] = ()
