"""What must hold: of the clients' requests at any time, and of the gateways once the fault is gone and nobody asks.

Quotas, by fault:

    any                 charged is what clients were answered, to the unit: nothing lost, nothing twice
    gateway killed      what it had under way stays charged as it was reserved, since nobody can say what it used;
                        it holds its concurrency for LEASE_SECONDS at most
    streams cut         charged by what was passed on, which clients cannot count: at least what the others used
    Valkey forgets      what had been charged before is gone; of what was under way no request is charged twice
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from tests.chaos.faults import Fault
from tests.chaos.load import Tally
from tests.chaos.scene import Scene
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
"""Connections to workers come and go."""

WRITES = 2
"""Of `worker_events_role`."""

ROUNDING = 0.02
"""Of a unit, a request: what has run out of a bucket is reckoned from microseconds, to a quarter of one."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Of each gateway at rest, before any fault."""

    tasks: int
    descriptors: int


async def baseline(scene: Scene) -> Baseline:
    """The larger of all gateways; they are the same."""
    tasks = [int((await gateway.metrics(scene.http))["tasks"]) for gateway in scene.gateways]
    return Baseline(max(tasks), max(descriptors(gateway.pid) for gateway in scene.gateways))


def seen_by_clients(fault: Fault, tally: Tally) -> list[str]:
    """What should not have been."""
    wrong = [f"before the first byte: {why}" for why in tally.failed]
    wrong += [f"without an error frame: {why}" for why in tally.silent]
    if tally.cut and not fault.cuts:
        wrong.append(f"{tally.cut} streams ended with an error frame, and no worker had failed")
    if (tally.retried or tally.excused) and not fault.kills_gateway:
        wrong.append("a request was lost with its gateway, and none was killed")
    if not tally.answered:
        wrong.append("nobody was answered at all")
    return wrong


async def green(scene: Scene) -> float:
    """Seconds until every gateway says that all is well, under load. Raises TimeoutError."""
    started = time.monotonic()
    async with asyncio.timeout(CONVERGE_SECONDS_MAX):
        while await _not_green(scene):
            await asyncio.sleep(0.02)
    return time.monotonic() - started


async def still_wrong(scene: Scene, at_rest: Baseline, orphans: set[str]) -> list[str]:
    """What does not hold at rest, after it had its time. `orphans`: reservations of gateways that were killed."""
    deadline = time.monotonic() + CONVERGE_SECONDS_MAX
    while True:
        # What comes later costs more, and says nothing while the others are not right.
        wrong = await _not_green(scene)
        if not wrong:
            held = await scene.running() - orphans
            wrong = [*await _held(scene, at_rest), *(f"concurrency is held by {name}" for name in held)]
            wrong += [f"the shared queue has {left}" for left in await scene.queue_left()]
        wrong = wrong or await _index(scene)
        if not wrong or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(0.25)


@dataclass(frozen=True, slots=True)
class Then:
    """How far the clients were when the fault came."""

    answered: int
    under_way: int


def charges(
    fault: Fault, tally: Tally, before: Mapping[str, float], after: Mapping[str, float], then: Then
) -> list[str]:
    """Is what the buckets say what clients saw?"""
    requests, tokens = (after[name] - before[name] for name in before)
    least = float(tally.answered)
    most = float(tally.answered + tally.cut)
    if fault.forgets_quotas:
        most -= then.answered
        least -= then.answered + then.under_way
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
    """Redis is sound, every gateway's copy shows what Redis has, and that is what engines say that they hold."""
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
        # Who only follows hears of a new life with its first event.
        for worker in (worker for worker, role in roles.items() if role == WRITES):
            written.add(worker)
            if pages[worker] != held.get(worker, 0):
                wrong.append(
                    f"{worker} holds {pages[worker]:g} blocks by its own word, {held.get(worker, 0)} in the index"
                )
    wrong += [f"nobody writes what {worker} publishes" for worker in held.keys() - written]
    return wrong
