"""The faults: how each is injected and healed, and what clients and quotas may notice of it."""

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
"""The delay in each direction: every reply of Redis comes later than `redis.timeout_ms`, which is 50."""

WORKER_STALL_SECONDS = 15.0
"""Longer than BROKEN_SECONDS of gateway/fleet/stalls.py, after which begun streams are broken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault and its permitted effects."""

    name: str
    inject: Deed
    heal: Deed
    """Undoes what `inject` did, unless it heals by itself."""
    seconds_min: float = 0.0
    """The fault must last so long to have an effect."""
    cuts: bool = False
    """Streams that had begun may end, with an error frame."""
    kills_gateway: bool = False
    """The gateway's requests under way are lost; their quota stays charged as it was reserved."""
    forgets_quotas: bool = False
    """Earlier charges are lost, so a request reserved before and settled afterwards may be charged in part."""


async def nothing(scene: Scene) -> None:
    """Do nothing: the control run."""


# Valkey.


async def kill_valkey(scene: Scene) -> None:
    """Kill Valkey, and cut the gateways' connections."""
    scene.valkey.kill()
    scene.link.cut()


async def start_valkey(scene: Scene) -> None:
    """Start Valkey with its data and wait until it answers."""
    await asyncio.to_thread(scene.valkey.start)
    await _answers(scene)


async def start_valkey_empty(scene: Scene) -> None:
    """Start Valkey without its data; its buckets are seeded before any gateway can reach it."""
    scene.link.up = False
    shutil.rmtree(scene.valkey.directory / "appendonlydir")
    await start_valkey(scene)
    await scene.seed_quotas()
    scene.link.up = True


async def stall_valkey(scene: Scene) -> None:
    """Stop Valkey by SIGSTOP: its sockets stay open and nothing is answered."""
    scene.valkey.signal(signal.SIGSTOP)


async def continue_valkey(scene: Scene) -> None:
    """Let a stalled Valkey go on."""
    scene.valkey.signal(signal.SIGCONT)


async def flush_valkey(scene: Scene) -> None:
    """Flush all data of Valkey, and seed the buckets in the same transaction."""
    await scene.seed_quotas(flush=True)


async def fill_valkey(scene: Scene) -> None:
    """Let Valkey refuse all writes that need memory."""
    await scene.redis.config_set("maxmemory", "1")


async def make_room_in_valkey(scene: Scene) -> None:
    """Let Valkey accept writes again."""
    await scene.redis.config_set("maxmemory", "0")


async def slow_link(scene: Scene) -> None:
    """Delay everything between the gateways and Valkey."""
    scene.link.delay_seconds = SLOW_SECONDS


async def fast_link(scene: Scene) -> None:
    """End the delay."""
    scene.link.delay_seconds = 0.0


async def cut_link(scene: Scene) -> None:
    """Cut the gateways' connections to Valkey; new ones are accepted."""
    scene.link.cut()


async def stop_link(scene: Scene) -> None:
    """Let no bytes pass between the gateways and Valkey; connections stay open."""
    scene.link.stop()


async def resume_link(scene: Scene) -> None:
    """Let bytes pass again."""
    scene.link.resume()


async def cut_link_often(scene: Scene) -> None:
    """Cut the gateways' connections to Valkey again and again, ten times a second for three seconds."""
    for _ in range(30):
        scene.link.cut()
        await asyncio.sleep(0.1)


async def _answers(scene: Scene) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await scene.redis.ping()
                return
            except redis.RedisError:  # Valkey reads from disk, or does not listen yet.
                await asyncio.sleep(0.02)


# Gateways.


async def kill_gateway(scene: Scene) -> None:
    """Kill one of the gateways."""
    victim = scene.random.choice(scene.gateways)
    scene.gone.add(victim.name)
    scene.victim = victim
    victim.signal(signal.SIGKILL)


async def stall_gateway(scene: Scene) -> None:
    """Stop one of the gateways by SIGSTOP."""
    scene.victim = scene.random.choice(scene.gateways)
    scene.victim.signal(signal.SIGSTOP)


async def continue_victim(scene: Scene) -> None:
    """Let the stalled process go on."""
    assert scene.victim is not None
    scene.victim.signal(signal.SIGCONT)


async def drain_gateway(scene: Scene) -> None:
    """Tell one of the gateways to stop, and wait until its streams and its process have ended."""
    scene.victim = scene.random.choice(scene.gateways)
    scene.victim.signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        code = await scene.victim.ended()
    assert code == 0, f"{scene.victim.name} ended with code {code}"


async def start_victim(scene: Scene) -> None:
    """Start the killed or stopped process again."""
    assert scene.victim is not None
    await scene.victim.start()


# Workers.


async def kill_worker(scene: Scene) -> None:
    """Kill one of the workers."""
    scene.victim = scene.random.choice(scene.workers)
    scene.victim.signal(signal.SIGKILL)


async def stall_worker(scene: Scene) -> None:
    """Stop one of the workers by SIGSTOP."""
    scene.victim = scene.random.choice(scene.workers)
    scene.victim.signal(signal.SIGSTOP)


async def stop_worker(scene: Scene) -> None:
    """Tell one of the workers to stop, and wait for its end."""
    scene.victim = scene.random.choice(scene.workers)
    scene.victim.signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        await scene.victim.ended()


async def cut_events(scene: Scene) -> None:
    """Cut both gateways' connections to the KV events of one worker.

    The gateways connect again and ask for the events that they have missed.
    """
    victim = scene.random.choice(scene.workers)
    for gateway in scene.gateways:
        assert sockets.cut(gateway.pid, victim.event_ports), (
            f"{gateway.name} does not listen to {victim.name}"
        )


FAULTS = (
    Fault(name="nothing", inject=nothing, heal=nothing),
    # Early: the leases of the killed gateway have expired when all other faults are over.
    Fault(name="gateway-killed", inject=kill_gateway, heal=start_victim, kills_gateway=True),
    Fault(name="gateway-stalled", inject=stall_gateway, heal=continue_victim),
    Fault(name="gateway-drained", inject=drain_gateway, heal=start_victim),
    Fault(name="valkey-killed", inject=kill_valkey, heal=start_valkey),
    Fault(name="valkey-stalled", inject=stall_valkey, heal=continue_valkey),
    Fault(name="valkey-full", inject=fill_valkey, heal=make_room_in_valkey),
    Fault(name="valkey-slow", inject=slow_link, heal=fast_link),
    Fault(name="valkey-cut", inject=cut_link, heal=nothing),
    Fault(name="valkey-cut-often", inject=cut_link_often, heal=nothing),
    Fault(name="valkey-unreachable", inject=stop_link, heal=resume_link),
    Fault(name="valkey-flushed", inject=flush_valkey, heal=nothing, forgets_quotas=True),
    Fault(name="valkey-emptied", inject=kill_valkey, heal=start_valkey_empty, forgets_quotas=True),
    Fault(name="worker-killed", inject=kill_worker, heal=start_victim, cuts=True),
    Fault(name="worker-stopped", inject=stop_worker, heal=start_victim, cuts=True),
    Fault(
        name="worker-stalled",
        inject=stall_worker,
        heal=continue_victim,
        seconds_min=WORKER_STALL_SECONDS,
        cuts=True,
    ),
    Fault(name="events-cut", inject=cut_events, heal=nothing),
)
