"""The throughput of a gateway: connections that each send the next request when the last one is answered.

Four loads: whole answers; streams of 64 chunks at full speed; streams with 5 ms between chunks, as engines send
them; and a crowd before workers that are always busy with uncached prompts, where each request waits for half a
second, wherever its gateway lets it wait. `direct` and `aiohttp` have one of the two workers. Where the load
generator shares the machine, CPU time per request is the steadier figure.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.benchmarks.load import Client, connect
from tests.benchmarks.subjects import Subject, cpu_seconds
from tests.benchmarks.wire import Texts, request

CONNECTIONS = 32
CHARACTERS = 200
CHUNKS = 64
GAP_MS = 5
WARM_UP_SECONDS = 0.5
CROWD = 256
CROWD_CHARACTERS = 4000
CROWD_CHUNKS = 4
PREFILL_MS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of load."""

    name: str
    chunks: int | None = None
    gap_ms: int = 0
    prefill_ms: int = 0
    connections: int = CONNECTIONS
    characters: int = CHARACTERS
    fresh: bool = False


KINDS = (
    Kind(name="whole"),
    Kind(name="stream", chunks=CHUNKS),
    Kind(name="paced", chunks=CHUNKS, gap_ms=GAP_MS),
    Kind(
        name="crowd",
        chunks=CROWD_CHUNKS,
        prefill_ms=PREFILL_MS,
        connections=CROWD,
        characters=CROWD_CHARACTERS,
        fresh=True,
    ),
)


@dataclass(slots=True)
class Sums:
    """Sums over all rounds, with the CPU time of the measured program and of the load generator."""

    requests: int = 0
    reads: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    client_seconds: float = 0.0


async def measure(subjects: Sequence[Subject], *, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return the figures by subject: each kind for so many seconds in each round."""
    texts = Texts()
    taken = {(subject.name, kind): Sums() for subject in subjects for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            for subject in subjects:
                await _load(subject, kind, texts, seconds, taken[subject.name, kind])
    return {subject.name: _figures(subject.name, taken) for subject in subjects}


async def _load(subject: Subject, kind: Kind, texts: Texts, seconds: float, sums: Sums) -> None:
    """Run one load and add its sums. Raises BadAnswer and OSError."""
    clients = [Client(_requests(subject, kind, texts)) for _ in range(kind.connections)]
    try:
        for client in clients:
            await connect(subject, client)
            # One after the other: else all paced streams would begin and end in the same moment.
            await asyncio.sleep((kind.chunks or 0) * kind.gap_ms / 1000 / kind.connections)
        await _run(clients, WARM_UP_SECONDS)
        before, started = _now(clients, subject), time.perf_counter()
        await _run(clients, seconds)
        after = _now(clients, subject)
        sums.seconds += time.perf_counter() - started
    finally:
        for client in clients:
            client.close()
    sums.requests += int(after[0] - before[0])
    sums.reads += int(after[1] - before[1])
    sums.cpu_seconds += after[2] - before[2]
    sums.client_seconds += after[3] - before[3]


def _requests(subject: Subject, kind: Kind, texts: Texts) -> Iterator[bytes]:
    """Yield requests with one prompt again and again, or with a new one each time."""
    data = b""
    while True:
        if kind.fresh or not data:
            text = texts.new(kind.characters)
            data = request(subject, text, chunks=kind.chunks, gap_ms=kind.gap_ms, prefill_ms=kind.prefill_ms)
        yield data


async def _run(clients: Sequence[Client], seconds: float) -> None:
    """Run the clients for a while. A client that ends by itself has failed, and its error is raised."""
    failed, _ = await asyncio.wait(
        [client.finished for client in clients], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
    )
    for finished in failed:
        finished.result()


def _now(clients: Sequence[Client], subject: Subject) -> tuple[float, float, float, float]:
    answered, reads = sum(client.answered for client in clients), sum(client.reads for client in clients)
    cpu = cpu_seconds(subject.pid) + (
        cpu_seconds(subject.envoy_pid) if subject.envoy_pid is not None else 0.0
    )
    return answered, reads, cpu, time.process_time()


def _figures(subject: str, taken: dict[tuple[str, Kind], Sums]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for kind in KINDS:
        sums = taken[subject, kind]
        requests = max(sums.requests, 1)
        figures |= {
            f"{kind.name}_requests_per_second": sums.requests / sums.seconds,
            f"{kind.name}_cpu_ms_per_request": 1000 * sums.cpu_seconds / requests,
            f"{kind.name}_cores_used": sums.cpu_seconds / sums.seconds,
            f"{kind.name}_client_cpu_ms_per_request": 1000 * sums.client_seconds / requests,
            f"{kind.name}_client_reads_per_request": sums.reads / requests,
        }
    return figures
