"""The delay between replicas, each a process, on one Valkey: from a confirmation until another replica shows it.

    python -m tests.benchmarks.index.replicas URL PREFIX NUMBER OF CHANGES        one of them

The replicas take turns: every GAP_SECONDS one of them confirms a path of its own, and all look for it whenever they
have changed. All processes of a machine have the same monotonic clock.
"""

import asyncio
import sys
import time
from array import array
from collections import deque
from random import Random

import orjson
import uvloop

from gateway.process.children import ChildFailed
from radix_cache.match import WorkerId
from radix_cache.shared.keys import Keys
from tests.benchmarks.index import timing
from tests.benchmarks.index.build import space
from tests.benchmarks.index.corpus import SEED, drawn
from tests.fakes.replica import Replica, replica

GAP_SECONDS = 0.010
START_SECONDS = 1.5
BLOCKS = 64
WORKER = WorkerId("worker-0")
BOUNDS = {"blocks_max": 1_000_000, "predicted_seconds": 10.0, "idle_seconds_max": 86400.0}


async def measure(url: str, counts: tuple[int, ...], changes: int) -> dict[str, float]:
    """Return the figures by number of replicas. Raises ChildFailed."""
    figures: dict[str, float] = {}
    for of in counts:
        told = await asyncio.gather(*(_child(url, f"seen-{of}", number, of, changes) for number in range(of)))
        sent = {int(n): at for one in told for n, at in one["sent"].items()}
        samples = [
            (at - sent[int(n)]) * 1000 for one in told for n, at in one["seen"].items() if int(n) in sent
        ]
        figures |= {
            f"seen_by_{of}_ms_p50": timing.at(samples, 50),
            f"seen_by_{of}_ms_p99": timing.at(samples, 99),
            f"seen_by_{of}_lost": changes * (of - 1) - len(samples),
        }
    return figures


async def _child(url: str, prefix: str, number: int, of: int, changes: int) -> dict[str, dict[str, float]]:
    command = (url, prefix, str(number), str(of), str(changes))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.index.replicas", *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await child.communicate()
    if child.returncode:
        raise ChildFailed(f"a replica: {' '.join(errors.decode(errors='replace').strip().splitlines()[-1:])}")
    told: dict[str, dict[str, float]] = orjson.loads(out)
    return told


async def one(url: str, prefix: str, number: int, of: int, changes: int) -> dict[str, dict[str, float]]:
    """Return when this replica sent each of its changes, and when it saw each change of the others."""
    at = await replica(url, Keys(prefix=prefix), time.monotonic, check_seconds=2.0, **BOUNDS)
    at.index.enrol(WORKER, "first")
    chance = Random(SEED)
    paths = [drawn(chance, BLOCKS) for _ in range(changes)]
    sent: dict[str, float] = {}
    seen: dict[str, float] = {}
    expected = deque(n for n in range(changes) if n % of != number)

    def look() -> None:
        at.index.replica_changed()
        now = time.monotonic()
        for _ in range(len(expected)):
            n = expected[0]
            if paths[n][0] not in at.index.replica.nodes:
                break
            expected.popleft()
            seen[str(n)] = now

    at.reader._changed = look
    started = await _together(at, of)
    for n in range(number, changes, of):
        await asyncio.sleep(max(0.0, started + n * GAP_SECONDS - time.monotonic()))
        sent[str(n)] = time.monotonic()
        at.index.confirm(space(0), paths[n], WORKER)
    await asyncio.sleep(max(0.0, started + changes * GAP_SECONDS + 0.3 - time.monotonic()))
    await at.close()
    return {"sent": sent, "seen": seen}


async def _together(at: Replica, of: int) -> float:
    """Return the moment to begin, which the last replica to arrive writes to Redis."""
    keys = at.index.store.keys
    if await at.scripts.ask("INCR", f"{keys.prefix}:here") == of:
        start = array("d", [time.monotonic() + START_SECONDS]).tobytes()
        await at.scripts.ask("SET", f"{keys.prefix}:start", start)
    while (start := await at.scripts.ask("GET", f"{keys.prefix}:start")) is None:
        await asyncio.sleep(0.02)
    return float(array("d", start)[0])


if __name__ == "__main__":
    to, named, *numbers = sys.argv[1:]
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(one(to, named, *map(int, numbers)))))
