"""The index layout of llm-d: a hash per block in Valkey, its fields the workers; HKEYS of all blocks in a pipeline.

The early stop happens in this process, after all replies; each field is JSON, as in llm-d.
"""

import json

import redis

from radix_cache.blocks import Hashes
from tests.benchmarks.index import timing
from tests.benchmarks.index.corpus import Session, Shape, holds, prompts

FILL_PER_PIPELINE = 2000


def measure(
    url: str, shape: Shape, sessions: list[Session], *, sizes: tuple[int, ...], calls: int, rounds: int
) -> dict[str, float]:
    """Fill the server and measure matches. Raises redis.RedisError."""
    with redis.Redis.from_url(url) as client:
        before = client.info("memory")["used_memory"]
        pods = [_pod(number) for number in range(shape.workers)]
        filled = _fill(client, sessions, pods)
        figures: dict[str, float] = {
            "redis_bytes_per_block": (client.info("memory")["used_memory"] - before) / filled
        }

        def ask(hashes: Hashes) -> dict[str, int]:
            pipe = client.pipeline(transaction=False)
            for one in hashes:
                pipe.hkeys(str(one))
            found: dict[str, int] = {}
            alive: set[str] | None = None
            for fields in pipe.execute():
                here = {json.loads(field)["podIdentifier"] for field in fields}
                alive = here if alive is None else alive & here
                if not alive:
                    break
                for pod in alive:
                    found[pod] = found.get(pod, 0) + 1
            return found

        for size in sizes:
            asked = prompts(sessions, size, calls)
            client.config_resetstat()
            taken = timing.in_turn({"match": ask}, asked, rounds)
            figures |= timing.figures(f"match_{size}", taken["match"])
            spent = client.info("commandstats")["cmdstat_hkeys"]["usec"]
            figures[f"match_{size}_server_us"] = spent / (len(asked) * (rounds + 1))
        return figures


def _pod(number: int) -> str:
    return json.dumps({"podIdentifier": f"worker-{number}", "deviceTier": "gpu", "speculative": False})


def _fill(client: "redis.Redis", sessions: list[Session], pods: list[str]) -> int:
    """Write the sessions and return the number of blocks."""
    written: set[tuple[int, int]] = set()
    pipe = client.pipeline(transaction=False)
    for session, hashes in holds(sessions):
        for one in reversed(hashes):
            if (one, session.worker) in written:
                break
            written.add((one, session.worker))
            pipe.hset(str(one), pods[session.worker], "")
        if len(pipe) >= FILL_PER_PIPELINE:
            pipe.execute()
    pipe.execute()
    return int(client.dbsize())
