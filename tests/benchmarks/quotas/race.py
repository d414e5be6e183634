"""Processes that race for one limit: what all of them were granted, and what the store has left."""

import asyncio
import sys
import time
from dataclasses import dataclass

from gateway.quotas.limit import Limit, Scope
from gateway.quotas.quota_store import Cost, Lease, Reservation
from gateway.quotas.redis_store import RedisQuotaStore
from policies.admission.limit_windows import Window
from radix_cache.redis.scripts import ScriptCaller
from tests.benchmarks.quotas.racer import LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Requests granted to all processes, tokens used on them, and tokens that the store has left."""

    granted: int
    used: int
    left: int
    seconds: float


async def race(
    url: str, organisation: str, *, processes: int, attempts: int, requests: int, tokens: int
) -> Outcome:
    """Let processes make so many attempts each; all begin at once."""
    numbers = [str(number) for number in (attempts, requests, tokens)]
    racers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.benchmarks.quotas.racer", url, organisation, str(at), *numbers),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for at in range(processes)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert await racer.stdout.readline() == b"ready\n"
        began = time.monotonic()
        said = await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))
    finally:
        for racer in racers:
            if racer.returncode is None:
                racer.kill()
                await racer.wait()
    seconds = time.monotonic() - began
    sums = [tuple(map(int, out.split())) for out, _ in said]
    return Outcome(
        granted=sum(granted for granted, _ in sums),
        used=sum(used for _, used in sums),
        left=await _left(url, organisation, tokens),
        seconds=seconds,
    )


async def _left(url: str, organisation: str, tokens: int) -> int:
    scripts = ScriptCaller(url)
    limit = Limit(unit="total_tokens", amount=tokens, window=Window(seconds=LONG, reset="rolling"))
    probe = Reservation(
        id="probe",
        organisation=organisation,
        scopes=(Scope(name="tenant:racers", limits=(limit,)),),
        cost=Cost(prompt_tokens=0),
    )
    lease = await RedisQuotaStore(scripts, timeout_seconds=60.0).reserve(probe)
    await scripts.close()
    assert isinstance(lease, Lease)
    return lease.limit_statuses[0].remaining
