"""The load of a fleet of gateways, and the layout that should handle it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDemand:
    """The load of all gateways together."""

    requests_per_second: float
    workers: int
    tenants: int
    """Each has its own namespace for each model; the tenants of one isolation group count as one."""
    models: int
    blocks: int
    """Blocks that all workers together have cached."""
    prompt_tokens: float
    """Mean tokens of a prompt."""
    shared_prefix: float
    """The share of a mean prompt that is cached somewhere already: 0 to 1."""
    waiting: float
    """The share of requests that wait for a turn, since no worker has room when they arrive: 0 to 1."""
    block_size: int = 64
    asking: float = 1.0
    """Where several processes share the queue: the share of requests that call Redis for their turns, 0 to 1. The
    others are short, and come while no request waits: gateway/queueing/shared/own_places.py."""

    @property
    def new_blocks(self) -> float:
        """Blocks of a mean prompt that no worker has cached yet."""
        return self.prompt_tokens / self.block_size * (1 - self.shared_prefix)

    @property
    def namespaces(self) -> int:
        """The number of namespaces of the index."""
        return self.tenants * self.models


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLayout:
    """The machines of a fleet of gateways."""

    gateways: int
    """In all deployments together."""
    processes: int
    """Of each gateway."""
    primaries: int
    """Primaries of the Redis Cluster of each deployment; 1 means a single server."""
    deployments: int = 1
    """Cells, each with its own Redis, among which the tenants are divided."""
    tenant_shards: int = 1
    """Shards among which the tenants of each model are divided in a cluster: `queueing.tenant_shards`."""
    shared_primaries: int = 1
    """Primaries of the Redis that several deployments share, for quotas."""

    @property
    def queue_in_redis(self) -> bool:
        """Whether the queue is in Redis: not for a gateway process that is alone."""
        return self.members > 1 or self.deployments > 1

    @property
    def members(self) -> int:
        """The number of gateway processes of one deployment."""
        return self.followers * self.processes

    @property
    def followers(self) -> int:
        """The number of processes of one deployment that follow the index: one of each gateway."""
        return -(-self.gateways // self.deployments)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMachines:
    """The resources of one machine, and the share that a plan may use."""

    redis_bytes: float
    process_bytes: float
    """Memory of one gateway process."""
    network_bytes_per_second: float
    """Of one Redis server."""
    used_max: float = 0.7
    """The largest share of a core, memory or network that a plan uses."""
