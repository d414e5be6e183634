"""The faults, one line each: what is done, how it is undone, and what clients and quotas may notice of it."""

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import redis

from tests.chaos.scene import Scene
from tests.stage import sockets

Deed = Callable[[Scene], Awaitable[None]]

SLOW_SECONDS = 0.05
"""Each way: no decision of Redis is in time (`redis.timeout_ms` is 50)."""

WORKER_STALL_SECONDS = 15.0
"""Three probes of three seconds have to fail before a worker counts as down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`seconds_min`: it needs so long to show. `heal`: what `inject` has left to be undone.

    `cuts`: streams that had begun may end, with an error frame. `kills_gateway`: what it had under way is lost; its
    quota stays as reserved. `forgets_quotas`: what was taken from buckets before it is gone, so what was reserved
    before and settled afterwards may be charged in part.
    """

    name: str
    inject: Deed
    heal: Deed
    seconds_min: float = 0.0
    cuts: bool = False
    kills_gateway: bool = False
    forgets_quotas: bool = False


async def nothing(scene: Scene) -> None:
    pass


# Valkey.


async def kill_valkey(scene: Scene) -> None:
    scene.valkey.kill()
    scene.link.cut()


async def start_valkey(scene: Scene) -> None:
    await asyncio.to_thread(scene.valkey.start)
    await _answers(scene)


async def start_valkey_empty(scene: Scene) -> None:
    """Its buckets are seeded before any gateway sees it."""
    scene.link.up = False
    shutil.rmtree(scene.valkey.directory / "appendonlydir")
    await start_valkey(scene)
    await scene.seed_quotas()
    scene.link.up = True


async def stall_valkey(scene: Scene) -> None:
    scene.valkey.signal(signal.SIGSTOP)


async def continue_valkey(scene: Scene) -> None:
    scene.valkey.signal(signal.SIGCONT)


async def flush_valkey(scene: Scene) -> None:
    await scene.seed_quotas(flush=True)


async def fill_valkey(scene: Scene) -> None:
    await scene.redis.config_set("maxmemory", "1")


async def make_room_in_valkey(scene: Scene) -> None:
    await scene.redis.config_set("maxmemory", "0")


async def slow_link(scene: Scene) -> None:
    scene.link.delay_seconds = SLOW_SECONDS


async def fast_link(scene: Scene) -> None:
    scene.link.delay_seconds = 0.0


async def cut_link(scene: Scene) -> None:
    scene.link.cut()


async def _answers(scene: Scene) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await scene.redis.ping()
                return
            except redis.RedisError:  # It reads from disk, or is not there yet.
                await asyncio.sleep(0.02)


# Gateways.


async def kill_gateway(scene: Scene) -> None:
    victim = scene.random.choice(scene.gateways)
    scene.gone.add(victim.name)
    scene.victim = victim
    victim.signal(signal.SIGKILL)


async def stall_gateway(scene: Scene) -> None:
    scene.victim = scene.random.choice(scene.gateways)
    scene.victim.signal(signal.SIGSTOP)


async def continue_victim(scene: Scene) -> None:
    assert scene.victim is not None
    scene.victim.signal(signal.SIGCONT)


async def drain_gateway(scene: Scene) -> None:
    """A balancer notices, streams end, and the process with them."""
    scene.victim = scene.random.choice(scene.gateways)
    scene.victim.signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        code = await scene.victim.ended()
    assert code == 0, f"{scene.victim.name} ended with code {code}"


async def start_victim(scene: Scene) -> None:
    assert scene.victim is not None
    await scene.victim.start()


# Workers.


async def kill_worker(scene: Scene) -> None:
    scene.victim = scene.random.choice(scene.workers)
    scene.victim.signal(signal.SIGKILL)


async def stall_worker(scene: Scene) -> None:
    scene.victim = scene.random.choice(scene.workers)
    scene.victim.signal(signal.SIGSTOP)


async def stop_worker(scene: Scene) -> None:
    scene.victim = scene.random.choice(scene.workers)
    scene.victim.signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        await scene.victim.ended()


async def cut_events(scene: Scene) -> None:
    """Of one worker, at both gateways. They connect again, and ask for what they have missed."""
    victim = scene.random.choice(scene.workers)
    for gateway in scene.gateways:
        assert sockets.cut(gateway.pid, victim.event_ports), (
            f"{gateway.name} does not listen to {victim.name}"
        )


FAULTS = (
    Fault(name="nothing", inject=nothing, heal=nothing),
    # Early: the leases that it leaves behind are over when all the others have been played.
    Fault(name="gateway-killed", inject=kill_gateway, heal=start_victim, kills_gateway=True),
    Fault(name="gateway-stalled", inject=stall_gateway, heal=continue_victim),
    Fault(name="gateway-drained", inject=drain_gateway, heal=start_victim),
    Fault(name="valkey-killed", inject=kill_valkey, heal=start_valkey),
    Fault(name="valkey-stalled", inject=stall_valkey, heal=continue_valkey),
    Fault(name="valkey-full", inject=fill_valkey, heal=make_room_in_valkey),
    Fault(name="valkey-slow", inject=slow_link, heal=fast_link),
    Fault(name="valkey-cut", inject=cut_link, heal=nothing),
    Fault(name="valkey-flushed", inject=flush_valkey, heal=nothing, forgets_quotas=True),
    Fault(name="valkey-emptied", inject=kill_valkey, heal=start_valkey_empty, forgets_quotas=True),
    Fault(name="worker-killed", inject=kill_worker, heal=start_victim, cuts=True),
    Fault(name="worker-stopped", inject=stop_worker, heal=start_victim, cuts=True),
    Fault(name="worker-stalled", inject=stall_worker, heal=continue_victim, seconds_min=WORKER_STALL_SECONDS),
    Fault(name="events-cut", inject=cut_events, heal=nothing),
)
