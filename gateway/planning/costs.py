"""The costs of one request for Redis and the gateways, as measured by benchmarks of this repository.

`make bench-fleet` prints its counts beside the predictions of these costs; `make bench-fleet BENCH_ARGS=--costs`
prints the costs themselves. Counts (commands, messages, bytes) are the same on every machine. Times are those of a
shared core of about 2.5 GHz under load, and differ between machines: an idle core is twice as fast.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCosts:
    """The costs of a request in one part of the data in Redis: index, quotas or queue."""

    commands: float
    """Commands inside scripts; the calls of scripts are counted separately."""
    bytes_in: float
    bytes_out: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCosts:
    """The costs of one request, of one change of the index, of one block, and of a gateway without requests."""

    # make bench-fleet BENCH_ARGS=--costs
    index: PartCosts = PartCosts(commands=24.5, bytes_in=1085.0, bytes_out=0.0)
    index_alone: PartCosts = PartCosts(commands=7.8, bytes_in=367.0, bytes_out=0.0)
    """Of a gateway process that is alone: it publishes only what is confirmed, in one change."""
    changes_alone: float = 1.0
    bytes_of_changes_alone: float = 63.0
    bytes_per_new_block_alone: float = 8.0
    """Into Redis and out of it."""
    quotas: PartCosts = PartCosts(commands=9.1, bytes_in=780.0, bytes_out=84.0)
    queue: PartCosts = PartCosts(commands=37.7, bytes_in=2075.0, bytes_out=268.0)
    """Where several processes share the queue: of a request that has its turn from Redis."""
    queue_own: PartCosts = PartCosts(commands=26.3, bytes_in=1215.0, bytes_out=128.0)
    """Of a request that a process places without a call (gateway/queueing/shared/own_places.py), at 25 requests a
    second of each process; with more of them it is less, since they are reported together.
    """
    turn: PartCosts = PartCosts(commands=73.0, bytes_in=1535.0, bytes_out=60.0)
    """Of a request that waits for its turn, in addition."""
    turn_commands_per_process: float = 1.7
    turn_bytes_per_process: float = 112.0
    """Sent to every process for every turn."""
    bytes_in_per_new_block: float = 16.1
    bytes_in_per_shared_prefix: float = 50.0
    """Of a request with a prompt that begins like others."""
    changes: float = 3.0
    """Changes of the index for every request, sent to one process of each gateway: predicted, held, withdrawn."""
    bytes_of_changes: float = 386.0
    """Of all together, without blocks."""
    bytes_per_new_block: float = 16.1
    """Of all changes of one request together, sent to one process of each gateway."""
    bytes_per_shared_prefix: float = 80.0
    bytes_in_per_script: float = 51.0
    urgent_moments: float = 1.3
    """Number of times that a request needs an answer of the shared queue at once. Those of a request that is
    placed without a call wait for others, too.
    """
    turn_moments: float = 2.4
    """The same for a request that waits, in addition."""
    moments_alone: float = 2.35
    moments_shared: float = 6.0
    """Number of further writes of a request; those within `coalesced_seconds` are sent together."""
    coalesced_seconds: float = 0.0045
    """About DELAY_SECONDS of radix_cache/redis/batch.py."""
    idle_commands: float = 54.8
    idle_bytes_in: float = 3240.0
    idle_bytes_out: float = 1540.0
    """Per second and process, without any request."""

    idle_commands_per_queue_shard: float = 8.5
    """A second, of each process, for each shard of the queue that it has joined in a cluster."""

    tip_commands: float = 24.0
    """Of these commands, those that only one process of a gateway has: it compares the tips of 48 shards every two
    seconds. Calculated, not counted.
    """

    visit_commands: float = 160.0
    """A second, for each shard among which a model's tenants are divided: ten visits of one gateway, by verb
    `cells` of the shared queue. Calculated from that verb, not counted.
    """

    idle_bytes_out_per_worker: float = 40.0
    """A second, of each process that shares the queue: id and load of every busy worker, as verb `beat` of the
    shared queue answers them. Calculated from that format, not counted.
    """

    # make bench-fleet, the table of cells
    shared_idle_commands: float = 20.0
    """A second, of each gateway process, in the Redis that all cells share."""

    lease_bytes_per_gateway: float = 30.0
    """A second, to each gateway process for each other one of all cells: the list of those that are alive."""

    published_bytes_per_worker: float = 500.0
    """A second, from each cell to each other one for each of its busy workers: ten reports of about 50 bytes.
    Calculated, not counted.
    """

    # make bench-fleet BENCH_ARGS=--costs, and its second table
    redis_us_per_script: float = 90.0
    redis_us_per_command: float = 4.0
    redis_us_per_delivery: float = 1.0
    process_us_per_request: float = 1500.0
    process_us_per_change: float = 30.0

    # python -m tests.benchmarks.index.machine
    process_us_per_published_change: float = 52.0
    """Of a process that also shows it to the others of its machine; less where changes arrive together."""
    segment_bytes_per_block: float = 10.0
    """Of the memory that the processes of a machine share."""

    # make bench-index, the table of memory, for chats
    redis_bytes_per_block: float = 15.0
    process_bytes_per_block: float = 37.0

    # make bench-quotas, the column "bytes"
    redis_bytes_per_tenant: float = 1000.0

    # make soak, the memory of a gateway after its first minute
    process_bytes: float = 200e6


MEASURED = FleetCosts()
"""The costs of this version."""
