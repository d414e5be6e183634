"""What one request costs Redis and the gateways, as benchmarks of this repository have measured it.

`make bench-fleet` prints what it counts beside what these figures predict, and `make bench-fleet
BENCH_ARGS=--costs` prints the figures themselves. Counts (commands, messages, bytes) are the same on every machine;
times are those of one core of an Intel Xeon at 2.0 to 2.8 GHz, and differ from machine to machine.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCosts:
    """What a request costs one part of the data in Redis: index, quotas or queue."""

    commands: float
    """Commands inside of scripts; the call of a script itself counts apart."""
    bytes_in: float
    bytes_out: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCosts:
    """The costs of one request, of one change of the index, of one block, and of a gateway without requests."""

    # make bench-fleet BENCH_ARGS=--costs
    index: PartCosts = PartCosts(commands=21.0, bytes_in=1330.0, bytes_out=70.0)
    quotas: PartCosts = PartCosts(commands=12.1, bytes_in=744.0, bytes_out=43.0)
    queue: PartCosts = PartCosts(commands=37.0, bytes_in=1999.0, bytes_out=256.0)
    """Where several gateways share the queue."""
    turn: PartCosts = PartCosts(commands=72.0, bytes_in=1300.0, bytes_out=78.0)
    """Of a request that waits for its turn, in addition."""
    turn_commands_per_process: float = 1.7
    turn_bytes_per_process: float = 105.0
    """Every process is told of every turn."""
    bytes_in_per_new_block: float = 16.1
    changes: float = 3.0
    """Changes of the index, each of which is sent to every process: predicted, held, withdrawn."""
    bytes_per_change: float = 122.0
    bytes_per_new_block: float = 16.1
    """Of all changes of one request together, sent to every process."""
    bytes_in_per_script: float = 51.0
    urgent_moments: float = 1.3
    """Moments at which a request needs an answer of the shared queue at once."""
    turn_moments: float = 2.4
    """The same for a request that waits, in addition."""
    moments_alone: float = 4.0
    moments_shared: float = 4.5
    """Further moments of a request that have something to write; those within `coalesced_seconds` go together."""
    coalesced_seconds: float = 0.0045
    idle_commands: float = 62.0
    idle_bytes_in: float = 3660.0
    idle_bytes_out: float = 1100.0
    """A second, of each process, without any request."""

    # make bench-fleet BENCH_ARGS=--costs, times
    redis_us_per_script: float = 30.0
    redis_us_per_command: float = 2.0
    redis_us_per_delivery: float = 2.0
    process_us_per_request: float = 900.0
    process_us_per_change: float = 35.0

    # make bench-index, "memory", a corpus of chats
    redis_bytes_per_block: float = 30.0
    process_bytes_per_block: float = 40.0

    # make bench-quotas, "bytes"
    redis_bytes_per_tenant: float = 1000.0

    # make soak, the memory of a gateway after its first minute
    process_bytes: float = 200e6


MEASURED = FleetCosts()
"""The costs of this version."""
