"""One process of a race: it prints that it is ready, waits for a line, races, and prints what it was granted.

python -m tests.benchmarks.quotas.racer URL ORGANISATION NUMBER ATTEMPTS REQUESTS TOKENS
"""

import asyncio
import sys

import uvloop

from gateway.quotas.limit import Limit, Scope
from gateway.quotas.quota_store import Cost, Lease, Reservation
from gateway.quotas.redis_store import RedisQuotaStore
from policies.admission.limit_windows import Window
from radix_cache.redis.scripts import ScriptCaller

TOKENS_EACH = 7
AT_ONCE = 50
LONG = 1e9
"""The window in seconds: no bucket is refilled during the race."""


async def race(
    url: str, organisation: str, number: int, attempts: int, requests: int, tokens: int
) -> tuple[int, int]:
    """Return the requests granted and the tokens used on them: half of those reserved."""
    scripts = ScriptCaller(url)
    store = RedisQuotaStore(scripts, timeout_seconds=60.0)
    limits = (
        Limit(unit="requests", amount=requests, window=Window(seconds=LONG)),
        Limit(unit="total_tokens", amount=tokens, window=Window(seconds=LONG, reset="rolling")),
    )
    scope, granted, used = Scope(name="tenant:racers", limits=limits), 0, 0
    await scripts.ping()
    print("ready", flush=True)
    sys.stdin.readline()

    async def one(attempt: int) -> None:
        nonlocal granted, used
        asked = Reservation(
            id=f"{number}-{attempt}",
            organisation=organisation,
            scopes=(scope,),
            cost=Cost(prompt_tokens=TOKENS_EACH),
        )
        lease = await store.reserve(asked)
        if isinstance(lease, Lease):
            actual = attempt % (TOKENS_EACH + 1)
            granted, used = granted + 1, used + actual
            await store.settle(lease, Cost(prompt_tokens=actual))

    for first in range(0, attempts, AT_ONCE):
        await asyncio.gather(*(one(attempt) for attempt in range(first, min(first + AT_ONCE, attempts))))
    await scripts.close()
    return granted, used


if __name__ == "__main__":
    url, organisation, *numbers = sys.argv[1:]
    print(*uvloop.run(race(url, organisation, *map(int, numbers))), flush=True)
