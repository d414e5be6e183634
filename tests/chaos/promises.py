"""The promises: rules for clients at any time, and for gateways once a fault is healed and no request runs.

Quotas, by fault:

    any                 the charges are exactly what answered requests used: nothing lost, nothing charged twice
    gateway killed      its requests under way stay charged as reserved, since what they used is not known;
                        they hold their concurrency for LEASE_SECONDS at most
    streams cut         charged by the tokens passed on, which clients cannot count: at least what the others used
    Valkey forgets      earlier charges are gone, also those of leases ahead of requests; no request under way is
                        charged twice

The usage ledger in PostgreSQL has every answered request once, with its tokens, whatever the database went through.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from gateway.quotas.escrow_policy import CONCURRENT_EACH
from tests.chaos.faults import Fault
from tests.chaos.load import Tally
from tests.chaos.scene import CONCURRENCY, GATEWAYS, TENANTS, Scene
from tests.stage.processes import descriptors

CONVERGE_SECONDS_MAX = 30.0
HELD = (
    "leases",
    "worker_streams",
    "worker_queued_tokens",
    "worker_kv_tokens",
    "waiting_requests",
    "index_predictions",
)
TASKS_MORE_MAX = 4
DESCRIPTORS_MORE_MAX = 8
"""Connections to workers are opened and closed all the time."""

WRITES = 2
"""The value of the metric `worker_events_role` of a gateway that writes the worker's events into the index."""

ROUNDING = 0.02
"""In units per request: the amount that ran out of a bucket is computed from microseconds, to a quarter of one."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a gateway uses at rest, before any fault."""

    tasks: int
    descriptors: int


async def baseline(scene: Scene) -> Baseline:
    """Return the largest numbers of all gateways, which have the same settings."""
    tasks = [int((await gateway.metrics(scene.http))["tasks"]) for gateway in scene.gateways]
    return Baseline(max(tasks), max(descriptors(gateway.pid) for gateway in scene.gateways))


def seen_by_clients(fault: Fault, tally: Tally) -> list[str]:
    """Return what clients saw and should not have seen."""
    wrong = [f"before the first byte: {why}" for why in tally.failed]
    wrong += [f"without an error frame: {why}" for why in tally.silent]
    if tally.cut and not fault.cuts:
        wrong.append(f"{tally.cut} streams ended with an error frame, and no worker had failed")
    if (tally.retried or tally.excused) and not fault.kills_gateway:
        wrong.append("a request was lost with its gateway, and none was killed")
    if not tally.answered:
        wrong.append("no request was answered at all")
    return wrong


async def green(scene: Scene) -> float:
    """Wait until every gateway reports under load that all is well; return the seconds. Raises TimeoutError."""
    started = time.monotonic()
    async with asyncio.timeout(CONVERGE_SECONDS_MAX):
        while await _not_green(scene):
            await asyncio.sleep(0.02)
    return time.monotonic() - started


async def still_wrong(scene: Scene, at_rest: Baseline, orphans: set[str]) -> list[str]:
    """Return the promises that do not hold at rest within CONVERGE_SECONDS_MAX.

    `orphans` are the reservations of killed gateways, which expire later.
    """
    deadline = time.monotonic() + CONVERGE_SECONDS_MAX
    while True:
        # Later checks cost more, and mean nothing while the earlier ones fail.
        wrong = await _not_green(scene)
        if not wrong:
            held = await scene.running() - orphans
            wrong = [*await _held(scene, at_rest), *(f"concurrency is held by {name}" for name in held)]
            wrong += [f"the shared queue has {left}" for left in await scene.queue_left()]
        wrong = wrong or await _index(scene)
        if not wrong or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(0.25)


LEASES_AHEAD_MAX = GATEWAYS * len(TENANTS) * (CONCURRENCY // CONCURRENT_EACH)
"""Leases that all gateways have reserved ahead of requests: a request that comes later uses one of them."""


@dataclass(frozen=True, slots=True)
class Injection:
    """How many requests were answered before a fault was injected, and how many had begun when it was done.

    An injection takes time, in which requests begin and end.
    """

    answered_before: int
    begun: int


def charges(
    fault: Fault,
    tally: Tally,
    before: Mapping[str, float],
    after: Mapping[str, float],
    injection: Injection,
) -> list[str]:
    """Return where the charges in the buckets differ from what the clients saw."""
    requests, tokens = (after[name] - before[name] for name in before)
    least = float(tally.answered)
    most = float(tally.answered + tally.cut)
    if fault.forgets_quotas:
        most -= injection.answered_before
        least -= injection.begun + LEASES_AHEAD_MAX
    if fault.kills_gateway:
        most += tally.retried + tally.excused
    slack = ROUNDING * (1 + tally.requests)
    wrong = []
    if not least - slack <= requests <= most + slack:
        wrong.append(f"requests charged: {requests:.1f}, should be {least:g} to {most:g}")
    exact = not (fault.forgets_quotas or fault.kills_gateway or tally.cut)
    if (exact and abs(tokens - tally.tokens) > slack) or (
        tokens < tally.tokens - slack and not fault.forgets_quotas
    ):
        wrong.append(f"tokens charged: {tokens:.1f}, should be {tally.tokens:,}")
    return wrong


async def ledger(scene: Scene, tally: Tally, before: tuple[int, int]) -> list[str]:
    """Return where the usage ledger differs from what the clients saw, after CONVERGE_SECONDS_MAX at most.

    `before` are the answered requests in the ledger, and their tokens, before the fault.
    """
    if scene.database is None:
        return []
    deadline = time.monotonic() + CONVERGE_SECONDS_MAX
    while True:
        requests, tokens = await scene.database.charged()
        found = requests - before[0], tokens - before[1]
        if found == (tally.answered, tally.tokens):
            return []
        if time.monotonic() > deadline:
            return [
                f"the usage ledger has {found[0]} more requests and {found[1]:,} more tokens, should be "
                f"{tally.answered} and {tally.tokens:,}"
            ]
        await asyncio.sleep(0.25)


async def _not_green(scene: Scene) -> list[str]:
    wrong = []
    for gateway in scene.gateways:
        try:
            state = await gateway.readiness(scene.http)
        except (aiohttp.ClientError, TimeoutError) as err:
            wrong.append(f"{gateway.name} does not answer: {type(err).__name__}")
            continue
        want = {"ready": True, "redis": "shared", "index": "following", "failing_loops": []}
        wrong += [
            f"{gateway.name}: {name} is {state[name]}" for name, good in want.items() if state[name] != good
        ]
        wrong += [
            f"{gateway.name}: {name} is {health}"
            for name, health in state["workers"].items()
            if health != "up"
        ]
    return wrong


async def _held(scene: Scene, at_rest: Baseline) -> list[str]:
    wrong = []
    for gateway in scene.gateways:
        gauges = await gateway.metrics(scene.http)
        wrong += [f"{gateway.name}: {name} is {gauges[name]:g}" for name in HELD if gauges.get(name)]
        if not gauges["queue_shared"]:
            wrong.append(f"{gateway.name}: it gives turns alone")
        for name, number, allowed in (
            ("tasks", int(gauges["tasks"]), at_rest.tasks + TASKS_MORE_MAX),
            ("file descriptors", descriptors(gateway.pid), at_rest.descriptors + DESCRIPTORS_MORE_MAX),
        ):
            if number > allowed:
                wrong.append(f"{gateway.name}: {number} {name}, at rest at most {allowed}")
    return wrong


async def _index(scene: Scene) -> list[str]:
    """Return where the index is damaged in Redis, or differs between Redis, the replicas and the engines."""
    code, output = await scene.index("verify")
    if code:
        return [f"index verify: {line}" for line in output.splitlines()]
    stats = await scene.index_stats()
    in_redis: Sequence[tuple[str, int]] = [(name, stats["total"][name]) for name in ("nodes", "blocks")]
    held = {worker["worker"]: worker["blocks"] for worker in stats["workers"]}
    wrong: list[str] = []
    written = set[str]()
    for gateway in scene.gateways:
        gauges = await gateway.metrics(scene.http)
        for name, number in in_redis:
            if gauges[f"index_{name}"] != number:
                wrong.append(f"{gateway.name} knows {gauges[f'index_{name}']:g} {name} of {number} in Redis")
        pages = await gateway.by_worker("worker_pages", scene.http)
        roles = await gateway.by_worker("worker_events_role", scene.http)
        # A gateway that only follows learns of a restarted engine with its first event.
        for worker in (worker for worker, role in roles.items() if role == WRITES):
            written.add(worker)
            if pages[worker] != held.get(worker, 0):
                wrong.append(
                    f"{worker} holds {pages[worker]:g} blocks by its own word, {held.get(worker, 0)} in the index"
                )
    wrong += [f"no gateway writes the events of {worker}" for worker in held.keys() - written]
    return wrong
