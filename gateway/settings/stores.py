"""Settings of the stores: Redis, cells, the database, stored responses, and the prefix index."""

from typing import Annotated, Literal

from msgspec import Meta

from gateway.settings.types import (
    Branch,
    DatabaseUrl,
    HttpUrl,
    Identifier,
    NotNegativeSeconds,
    Positive,
    RedisUrl,
    Seconds,
)


class RedisSettings(Branch, frozen=True, kw_only=True):
    """The Redis server that holds quotas, leases, the shared queue and the prefix index."""

    url: Annotated[
        RedisUrl,
        Meta(
            description="Address of Redis: redis://host:6379/0, rediss:// or unix:///path; for a cluster "
            "redis+cluster:// or rediss+cluster:// and some of its servers (host:6379,host:6379); for sentinels "
            "redis+sentinel://host:26379,host:26379/service. `embedded` starts a private Valkey server."
        ),
    ] = "embedded"
    timeout_ms: Annotated[
        Positive,
        Meta(description="Longest wait of a request for Redis, after which the gateway decides alone."),
    ] = 50
    escrow: Annotated[
        bool,
        Meta(
            description="Reserve quota in advance for busy accounts that are far from all limits, so that their "
            "requests do not wait for Redis: for one second, and up to 128 further requests of the same size."
        ),
    ] = True
    prefix: Annotated[
        str,
        Meta(
            description="Prefix of all keys in Redis; deployments that share a Redis need different prefixes.",
            pattern=r"^[A-Za-z0-9:_.-]{1,64}\Z",
        ),
    ] = "rg"


class CellSettings(Branch, frozen=True, kw_only=True):
    """The cell that a gateway is in, and what all cells share."""

    name: Annotated[Identifier, Meta(description="Name of the cell; the same for all of its gateways.")]
    redis_url: Annotated[
        RedisUrl,
        Meta(
            description="Address of the Redis that all cells share, in the form of `redis.url` but not `embedded`. "
            "It stores quotas, the list of cells and the loads of workers. `redis.url` is the cell's own Redis."
        ),
    ]
    url: Annotated[
        HttpUrl,
        Meta(
            description="Address at which the gateways of other cells reach this gateway, or a load balancer in "
            "front of its cell's gateways."
        ),
    ]
    redis_prefix: Annotated[
        str,
        Meta(
            description="Prefix of all keys in the Redis that all cells share; the same for all cells.",
            pattern=r"^[A-Za-z0-9:_.-]{1,64}\Z",
        ),
    ] = "rg-cells"
    lease_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=3600,
            description="Time without a renewed lease after which a gateway counts as dead. Other cells serve the "
            "tenants of a cell without a living gateway.",
        ),
    ] = 5.0


class DatabaseSettings(Branch, frozen=True, kw_only=True):
    """The database that holds tenants, keys, usage and other data that is created at run time."""

    url: Annotated[
        DatabaseUrl,
        Meta(
            description="Address of the database: `sqlite:///FILE`, relative to `state_directory`, or "
            "`postgresql://user:password@host/name`. `none`: no database; tenants come from the settings file only."
        ),
    ] = "sqlite:///radixgate.db"
    upgrade: Annotated[
        Literal["auto", "always", "never"],
        Meta(
            description="Whether a gateway upgrades the tables when it starts (`always`, `never`), or only "
            "`radixgate database upgrade` does. `auto`: gateways upgrade SQLite only."
        ),
    ] = "auto"
    known_keys_seconds_max: Annotated[
        NotNegativeSeconds,
        Meta(
            description="Time for which known API keys are accepted while the database is unreachable, even after "
            "a restart (from an encrypted copy in `state_directory`). Unknown keys get a 503."
        ),
    ] = 3600.0


class StoredResponseSettings(Branch, frozen=True, kw_only=True):
    """The responses and conversations of the Responses API in the database."""

    kept_seconds: Annotated[
        NotNegativeSeconds,
        Meta(
            description="Time for which a response is stored, and a conversation after its last change; "
            "0: nothing is stored."
        ),
    ] = 86400.0
    tenant_responses_max: Annotated[
        Positive,
        Meta(
            description="Largest number of stored responses of one tenant, in at most 256 MiB, and likewise of "
            "stored conversations. Beyond a bound the oldest are deleted."
        ),
    ] = 1000


class IndexSettings(Branch, frozen=True, kw_only=True):
    """The prefix index, which records what workers have cached."""

    memory_bytes_max: Annotated[
        Positive,
        Meta(
            description="Memory in bytes for the index. In addition, half as much is allowed for following the KV "
            "events of workers, and half as much for changes that Redis does not have yet."
        ),
    ] = 2 * 1024**3
    predicted_seconds: Annotated[
        Seconds,
        Meta(
            description="Longest time for which a running request counts towards the demand for its prefix, and "
            "the worker is expected to cache that prefix soon. Both end with the request."
        ),
    ] = 60.0
    idle_seconds_max: Annotated[
        Seconds, Meta(description="Time after which unused blocks are removed from the index.")
    ] = 86400.0
