"""The faults: how each is injected and healed, and which effects on clients and quotas are allowed."""

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import redis

from tests.chaos.scene import LinkedPostgres, Scene, Stage
from tests.stage import sockets
from tests.stage.link import Link

Deed = Callable[[Scene], Awaitable[None]]

SLOW_SECONDS = 0.05
"""The delay in each direction: every reply of Redis comes later than `redis.timeout_ms`, which is 50."""

SERVERS_SECONDS_MAX = 60.0
"""How long a failover may take."""

DATABASE_SILENT_SECONDS = 10.0

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
    stage: Stage = Stage.VALKEY
    forgets_quotas: bool = False
    """Earlier charges are lost, so a request reserved before and settled afterwards may be charged in part."""


async def nothing(scene: Scene) -> None:
    """Do nothing: the control run."""


# Valkey.


async def kill_valkey(scene: Scene) -> None:
    """Kill Valkey, and cut the gateways' connections."""
    scene.linked.valkey.kill()
    scene.linked.link.cut()


async def start_valkey(scene: Scene) -> None:
    """Start Valkey with its data and wait until it answers."""
    await asyncio.to_thread(scene.linked.valkey.start)
    await _answers(scene)


async def start_valkey_empty(scene: Scene) -> None:
    """Start Valkey without its data; its buckets are seeded before any gateway can reach it."""
    scene.linked.link.up = False
    shutil.rmtree(scene.linked.valkey.directory / "appendonlydir")
    await start_valkey(scene)
    await scene.seed_quotas()
    scene.linked.link.up = True


async def stall_valkey(scene: Scene) -> None:
    """Stop Valkey by SIGSTOP: its sockets stay open and nothing is answered."""
    scene.linked.valkey.signal(signal.SIGSTOP)


async def continue_valkey(scene: Scene) -> None:
    """Let a stalled Valkey go on."""
    scene.linked.valkey.signal(signal.SIGCONT)


async def flush_valkey(scene: Scene) -> None:
    """Flush all data of Valkey, and seed the buckets in the same transaction."""
    await scene.seed_quotas(flush=True)


async def fill_valkey(scene: Scene) -> None:
    """Let Valkey refuse all writes that need memory."""
    await scene.servers.client.config_set("maxmemory", "1")


async def make_room_in_valkey(scene: Scene) -> None:
    """Let Valkey accept writes again."""
    await scene.servers.client.config_set("maxmemory", "0")


async def slow_link(scene: Scene) -> None:
    """Delay everything between the gateways and Valkey."""
    scene.linked.link.delay_seconds = SLOW_SECONDS


async def fast_link(scene: Scene) -> None:
    """End the delay."""
    scene.linked.link.delay_seconds = 0.0


async def cut_link(scene: Scene) -> None:
    """Cut the gateways' connections to Valkey; new ones are accepted."""
    scene.linked.link.cut()


async def stop_link(scene: Scene) -> None:
    """Let no bytes pass between the gateways and Valkey; connections stay open."""
    scene.linked.link.stop()


async def resume_link(scene: Scene) -> None:
    """Let bytes pass again."""
    scene.linked.link.resume()


async def cut_link_often(scene: Scene) -> None:
    """Cut the gateways' connections to Valkey again and again, ten times a second for three seconds."""
    for _ in range(30):
        scene.linked.link.cut()
        await asyncio.sleep(0.1)


async def _answers(scene: Scene) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await scene.servers.client.ping()
                return
            except redis.RedisError:  # Valkey reads from disk, or does not listen yet.
                await asyncio.sleep(0.02)


# Servers that a sentinel watches.


async def kill_primary(scene: Scene) -> None:
    """Kill the primary, and wait until the sentinel has promoted the replica."""
    (await asyncio.to_thread(scene.watched.fell)).kill()
    await _until(scene.watched.replaced)


async def stall_primary(scene: Scene) -> None:
    """Stop the primary by SIGSTOP, and wait until the sentinel has promoted the replica."""
    (await asyncio.to_thread(scene.watched.fell)).signal(signal.SIGSTOP)
    await _until(scene.watched.replaced)


async def promote_replica(scene: Scene) -> None:
    """Let primary and replica change places without loss."""
    await asyncio.to_thread(scene.watched.fell)
    await asyncio.to_thread(scene.watched.promote)
    await _until(scene.watched.replaced)


async def start_replica(scene: Scene) -> None:
    """Start the killed primary as a replica."""
    fallen = scene.watched.fallen
    assert fallen is not None
    port = await asyncio.to_thread(scene.watched.primary_port)
    await asyncio.to_thread(fallen.start, "--save", "", "--replicaof", f"127.0.0.1 {port}")
    await _until(scene.watched.has_replica)


async def continue_primary(scene: Scene) -> None:
    """Let the stalled primary go on; the sentinel makes it a replica."""
    assert scene.watched.fallen is not None
    scene.watched.fallen.signal(signal.SIGCONT)
    await _until(scene.watched.has_replica)


async def wait_for_replica(scene: Scene) -> None:
    """Wait until the primary has a replica again."""
    await _until(scene.watched.has_replica)


async def _until(true: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    async with asyncio.timeout(SERVERS_SECONDS_MAX):
        while not await asyncio.to_thread(true):
            await asyncio.sleep(0.05)


# A cluster.


async def move_slots(scene: Scene) -> None:
    """Move the slots of quotas, queue and index to the next server under load, key by key, and back."""
    for _ in range(2):
        for slot in await asyncio.to_thread(scene.clustered.used_slots):
            await asyncio.to_thread(scene.clustered.move, slot)


async def kill_shard(scene: Scene) -> None:
    """Kill the primary with the shared queue, and wait until its replica has taken its place."""
    (await asyncio.to_thread(scene.clustered.fell)).kill()
    await _until(scene.clustered.replaced)


async def promote_shard(scene: Scene) -> None:
    """Let the primary with the shared queue and its replica change places without loss."""
    await asyncio.to_thread(scene.clustered.fell)
    await asyncio.to_thread(scene.clustered.promote)
    await _until(scene.clustered.replaced)


async def start_shard(scene: Scene) -> None:
    """Start the killed server, which finds that it has been replaced and becomes a replica."""
    assert scene.clustered.fallen is not None
    await asyncio.to_thread(scene.clustered.fallen.start)
    await _until(scene.clustered.has_replicas)


async def wait_for_shard(scene: Scene) -> None:
    """Wait until every primary has a replica again."""
    await _until(scene.clustered.has_replicas)


# Links before workers.


async def slow_worker(scene: Scene) -> None:
    """Delay everything between the gateways and one of the workers."""
    _hit(scene).delay_seconds = SLOW_SECONDS


async def cut_worker(scene: Scene) -> None:
    """Cut all connections to one of the workers."""
    _hit(scene).cut()


async def cut_worker_often(scene: Scene) -> None:
    """Cut all connections to one of the workers again and again, ten times a second for three seconds."""
    link = _hit(scene)
    for _ in range(30):
        link.cut()
        await asyncio.sleep(0.1)


async def stop_worker_link(scene: Scene) -> None:
    """Let no bytes pass between the gateways and one of the workers; connections stay open."""
    _hit(scene).stop()


async def resume_worker_link(scene: Scene) -> None:
    """Let bytes pass again, without delay."""
    assert scene.hit_link is not None
    scene.hit_link.delay_seconds = 0.0
    scene.hit_link.resume()


def _hit(scene: Scene) -> Link:
    scene.hit_link = scene.random.choice(scene.worker_links)
    return scene.hit_link


# The database.


async def slow_database(scene: Scene) -> None:
    """Delay everything between the gateways and the database."""
    _database(scene).link.delay_seconds = SLOW_SECONDS


async def cut_database(scene: Scene) -> None:
    """Cut the gateways' connections to the database again and again, ten times a second for three seconds."""
    for _ in range(30):
        _database(scene).link.cut()
        await asyncio.sleep(0.1)


async def stop_database_link(scene: Scene) -> None:
    """Let no bytes pass between the gateways and the database; connections stay open."""
    _database(scene).link.stop()


async def resume_database_link(scene: Scene) -> None:
    """Let bytes pass again, without delay."""
    _database(scene).link.delay_seconds = 0.0
    _database(scene).link.resume()


async def kill_database(scene: Scene) -> None:
    """Stop the database as in a crash."""
    await asyncio.to_thread(_database(scene).server.stop)


async def start_database(scene: Scene) -> None:
    """Start the database with its data."""
    await asyncio.to_thread(_database(scene).server.start)


def _database(scene: Scene) -> LinkedPostgres:
    assert scene.database is not None
    return scene.database


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
    Fault(name="worker-slow", inject=slow_worker, heal=resume_worker_link, stage=Stage.WORKER_LINKS),
    Fault(name="worker-cut", inject=cut_worker, heal=nothing, stage=Stage.WORKER_LINKS, cuts=True),
    Fault(
        name="worker-cut-often", inject=cut_worker_often, heal=nothing, stage=Stage.WORKER_LINKS, cuts=True
    ),
    Fault(
        name="worker-unreachable",
        inject=stop_worker_link,
        heal=resume_worker_link,
        seconds_min=WORKER_STALL_SECONDS,
        stage=Stage.WORKER_LINKS,
        cuts=True,
    ),
    Fault(name="database-slow", inject=slow_database, heal=resume_database_link, stage=Stage.DATABASE),
    Fault(name="database-cut-often", inject=cut_database, heal=nothing, stage=Stage.DATABASE),
    Fault(
        name="database-unreachable",
        inject=stop_database_link,
        heal=resume_database_link,
        seconds_min=DATABASE_SILENT_SECONDS,
        stage=Stage.DATABASE,
    ),
    Fault(name="database-killed", inject=kill_database, heal=start_database, stage=Stage.DATABASE),
    Fault(name="primary-killed", inject=kill_primary, heal=start_replica, stage=Stage.SENTINEL),
    Fault(name="primary-stalled", inject=stall_primary, heal=continue_primary, stage=Stage.SENTINEL),
    Fault(name="replica-promoted", inject=promote_replica, heal=wait_for_replica, stage=Stage.SENTINEL),
    Fault(name="slots-moved", inject=move_slots, heal=nothing, stage=Stage.CLUSTER),
    Fault(name="shard-killed", inject=kill_shard, heal=start_shard, stage=Stage.CLUSTER),
    Fault(name="shard-promoted", inject=promote_shard, heal=wait_for_shard, stage=Stage.CLUSTER),
)
