"""Where a gateway keeps things, and for how long."""

from typing import Annotated, Literal

from msgspec import Meta

from gateway.settings.types import (
    Branch,
    DatabaseUrl,
    NotNegativeSeconds,
    Positive,
    RedisUrl,
    Seconds,
)


class RedisSettings(Branch, frozen=True, kw_only=True):
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
    escrow: Annotated[
        bool,
        Meta(
            description="Quota of busy accounts that are far from all of their limits is reserved before the next "
            "request comes, up to four of its size for a second, so that it does not wait for Redis."
        ),
    ] = True
    prefix: Annotated[
        str,
        Meta(
            description="What all keys begin with; another one for each deployment that shares a Redis.",
            pattern=r"^[A-Za-z0-9:_.-]{1,64}\Z",
        ),
    ] = "rg"


class DatabaseSettings(Branch, frozen=True, kw_only=True):
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


class StoredResponseSettings(Branch, frozen=True, kw_only=True):
    """What the Responses API keeps, in the database."""

    kept_seconds: Annotated[
        NotNegativeSeconds,
        Meta(description="How long a response and its conversation can be asked for; 0: nothing is kept."),
    ] = 86400.0
    tenant_responses_max: Annotated[
        Positive, Meta(description="Of one tenant; the oldest make room. All together take at most 256 MiB.")
    ] = 1000


class IndexSettings(Branch, frozen=True, kw_only=True):
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
