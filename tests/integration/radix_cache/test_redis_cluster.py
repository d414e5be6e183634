"""A real cluster of three servers: slots move under traffic, servers die and return."""

import asyncio
import random
import time
from array import array

import pytest
import redis

from gateway.quotas.limit import Limit, Scope
from gateway.quotas.quota_store import Cost, Lease, Reservation
from gateway.quotas.redis_store import RedisQuotaStore
from policies.admission.limit_windows import Window
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.cluster import RETRY_SECONDS_MAX
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.redis.topology import slot_of
from radix_cache.shared.keys import REGISTRY, Keys, tree_id
from tests.fakes.redis_cluster import Node
from tests.fakes.replica import replica
from tests.stage.ports import free_ports

APPEND = Script.from_text("#!lua\nreturn redis.call('RPUSH', KEYS[1], ARGV[1])")
BOUNDS = {"blocks_max": 10_000, "predicted_seconds": 10, "idle_seconds_max": 1000}
W, V = WorkerId("w"), WorkerId("v")


def path(*names: int) -> "array[int]":
    """A hash for each prefix: paths that begin alike have their beginning in common, and nothing else."""
    return array("Q", [int("".join(map(str, names[: end + 1]))) for end in range(len(names))])


def spaces_by_server(keys, cluster):
    """One namespace of a shard for every server, by port."""
    found = {}
    for number in range(1000):
        space = Namespace(model=f"m{number}", block_size=16)
        owner = cluster.owner(slot_of(keys.tag(keys.shard(tree_id(space)))))
        found.setdefault(owner.port, space)
        if len(found) == 3:
            return found
    raise AssertionError("no shard on one of the servers")


async def until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it does not become true"
        await asyncio.sleep(0.01)


@pytest.fixture
async def scripts(own_cluster):
    caller = ScriptCaller(own_cluster.url)
    yield caller
    await caller.close()


async def in_thread(action, *arguments):
    return await asyncio.to_thread(action, *arguments)


async def test_a_script_may_publish_to_a_channel_of_its_own_slot_and_touch_no_key_of_another(cluster):
    caller = ScriptCaller(cluster.url)
    tell = Script.from_text("#!lua\nreturn redis.call('SPUBLISH', ARGV[1], 'x')")
    assert await caller.call(tell, ["a:{ix:01}:log"], ["a:{ix:01}"]) == 0
    stray = Script.from_text("#!lua\nreturn redis.call('GET', ARGV[1])")
    with pytest.raises(RedisDown, match=r"non local key|do not hash to the same slot|not declared"):
        await caller.call(stray, ["a:{ix:01}:log"], ["a:{ix:02}:log"])
    await caller.close()


async def test_calls_of_one_key_stay_in_order_while_its_slot_moves(own_cluster, scripts):
    key, slot, sent, failed = "list:{moving}", slot_of("{moving}"), 0, 0
    answers = []

    async def traffic():
        nonlocal sent
        while True:
            for _ in range(random.randint(1, 8)):
                answers.append(scripts.call(APPEND, [key], [sent]))
                sent += 1
            await asyncio.sleep(random.choice([0, 0, 0.001]))

    running = asyncio.create_task(traffic())
    await asyncio.sleep(0.05)
    for _ in range(6):
        source = await in_thread(own_cluster.owner, slot)
        target = random.choice([node for node in own_cluster.nodes if node is not source])
        await in_thread(own_cluster.begin_move, slot, target)
        await asyncio.sleep(0.02)
        await in_thread(own_cluster.move_keys, slot, source, target)
        await asyncio.sleep(0.02)
        await in_thread(own_cluster.end_move, slot, target)
        await asyncio.sleep(0.05)
    running.cancel()
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    failed = sum(isinstance(outcome, RedisDown) for outcome in outcomes)
    found = [int(number) for number in await scripts.ask("LRANGE", key, 0, -1)]
    assert found == sorted(set(found))
    assert [number for number, outcome in enumerate(outcomes) if isinstance(outcome, int)] == found
    assert failed == 0
    assert sent > 200


async def test_replicas_and_redis_agree_after_slots_moved_under_traffic(own_cluster):
    chance = random.Random(5)
    keys = Keys(prefix="t", shards=4, parts=2)
    space = Namespace(model="m", block_size=16)
    # Nothing is compared in between: what is heard comes through the subscriptions that moved along.
    replicas = [await replica(own_cluster.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    for each in replicas:
        for worker in (W, V):
            each.index.enrol(worker, "first")
        await each.arrived()

    async def traffic():
        while True:
            index = chance.choice(replicas).index
            names = [chance.randint(1, 3) for _ in range(chance.randint(1, 7))]
            if chance.random() < 0.7:
                index.confirm(space, path(*names), chance.choice((W, V)))
            else:
                index.shorten(space, path(*names), chance.choice((W, V)), chance.randint(0, 6))
            await asyncio.sleep(chance.choice([0, 0.001, 0.002]))

    running = asyncio.create_task(traffic())
    slots = [slot_of(keys.tag(number)) for number in (*map(keys.shard, keys.trees_of(space)), REGISTRY)]
    for _ in range(3):
        for slot in slots:
            source = await in_thread(own_cluster.owner, slot)
            target = chance.choice([node for node in own_cluster.nodes if node is not source])
            await in_thread(own_cluster.begin_move, slot, target)
            await asyncio.sleep(0.03)
            while await in_thread(own_cluster.move_keys, slot, source, target, 2):
                await asyncio.sleep(0.03)
            await in_thread(own_cluster.end_move, slot, target)
            await asyncio.sleep(0.1)
    running.cancel()
    for each in replicas:
        await until(lambda each=each: each.reader.up and not each.scripts.busy)
        await each.caught_up()
    for each in replicas:
        await each.arrived()
    scripts = replicas[0].scripts
    trees = [await scripts.ask("HGETALL", keys.tree(tree)) for tree in keys.trees_of(space)]
    assert all(trees)
    flat = [each for tree in trees for each in tree]
    runs = {name[1:]: run for name, run in zip(flat[::2], flat[1::2], strict=True) if name[:1] == b"R"}
    assert runs
    for each in replicas:
        nodes = each.index.replica.nodes
        assert {key.to_bytes(8, "little"): node.run.tobytes() for key, node in nodes.items()} == runs
        for key, node in replicas[0].index.replica.nodes.items():
            assert dict(node.holders()) == dict(nodes[key].holders())
        await each.close()


async def test_changes_are_received_from_where_a_slot_has_moved_to(own_cluster):
    keys = Keys(prefix="t", shards=2)
    space = Namespace(model="m", block_size=16)
    slot = slot_of(keys.tag(keys.shard(tree_id(space))))
    # It compares once a minute: what it learns here, it hears.
    writer, hearer = [
        await replica(own_cluster.url, keys, time.monotonic, check_seconds=60.0, **BOUNDS) for _ in range(2)
    ]
    writer.index.enrol(W, "first")
    writer.index.confirm(space, path(1), W)
    for number in range(2, 5):
        source = await in_thread(own_cluster.owner, slot)
        target = own_cluster.nodes[(own_cluster.nodes.index(source) + 1) % 3]
        await in_thread(own_cluster.begin_move, slot, target)
        await in_thread(own_cluster.move_keys, slot, source, target)
        await in_thread(own_cluster.end_move, slot, target)
        await asyncio.sleep(0.6)
        await until(lambda: "w" in writer.index.replica.tenures)
        writer.index.confirm(space, path(number), W)
        await until(lambda number=number: hearer.index.match(space, path(number)).confirmed == {W: 1})
    assert writer.reader.snapshots + hearer.reader.snapshots <= 8
    for each in (writer, hearer):
        await each.close()


async def test_a_server_that_dies_fails_its_calls_and_no_others_and_heals_when_it_is_back(
    own_cluster, scripts
):
    names = [f"list:{{{number}}}" for number in range(30)]
    await asyncio.gather(*(scripts.call(APPEND, [name], [0]) for name in names))
    victim = own_cluster.nodes[1]
    theirs = {name for name in names if own_cluster.owner(slot_of(name)) is victim}
    assert 3 < len(theirs) < 27
    victim.kill()
    seconds = []
    for turn in range(1, 20):
        started = time.monotonic()
        calls = {name: scripts.call(APPEND, [name], [turn]) for name in names}
        living = [calls[name] for name in names if name not in theirs]
        assert await asyncio.gather(*living) == [turn + 1] * len(living)
        dead = await asyncio.gather(*(calls[name] for name in theirs), return_exceptions=True)
        assert {type(outcome) for outcome in dead} == {RedisDown}
        seconds.append(time.monotonic() - started)
    # Calls wait for a dead server once, and not once for each of the 19 rounds.
    assert min(seconds) < RETRY_SECONDS_MAX / 2
    victim.start()

    async def healed(name):
        async with asyncio.timeout(60):
            while True:
                try:
                    return await scripts.call(APPEND, [name], [0])
                except RedisDown:
                    await asyncio.sleep(0.05)

    assert set(await asyncio.gather(*map(healed, theirs))) == {1}


async def test_an_index_whose_server_dies_follows_the_other_shards_and_reads_the_lost_ones_again(own_cluster):
    keys = Keys(prefix="t", shards=16)
    spaces = spaces_by_server(keys, own_cluster)
    replicas = [await replica(own_cluster.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    one, other = replicas
    one.index.enrol(W, "first")
    await until(lambda: all("w" in each.index.replica.tenures for each in replicas))
    for space in spaces.values():
        one.index.confirm(space, path(1, 2), W)
    hashes = path(1, 2)
    await until(lambda: all(other.index.match(s, hashes).confirmed == {W: 2} for s in spaces.values()))

    registry = own_cluster.owner(slot_of(keys.tag(REGISTRY)))
    victim = next(node for node in own_cluster.nodes if node is not registry)
    lost = spaces.pop(victim.port)
    victim.kill()
    await until(lambda: not one.reader.up and not other.reader.up)
    # The copy still answers for what is away, the others go on.
    assert other.index.match(lost, hashes).confirmed == {W: 2}
    for space in spaces.values():
        one.index.confirm(space, path(7, 8, 9), W)
    await until(lambda: all(other.index.match(s, path(7, 8, 9)).confirmed == {W: 3} for s in spaces.values()))

    victim.start()
    await until(lambda: one.reader.up and other.reader.up)
    shard = keys.shard(tree_id(lost))
    await until(lambda: all(each.index.replica.shards[shard].tip == bytes(8) for each in replicas))
    one.index.confirm(lost, path(4, 5), W)
    await until(lambda: other.index.match(lost, path(4, 5)).confirmed == {W: 2})
    for each in replicas:
        await each.close()


async def test_paths_of_shards_that_are_there_are_sent_while_another_server_stays_away(own_cluster):
    keys = Keys(prefix="t", shards=16)
    registry = await in_thread(own_cluster.owner, slot_of(keys.tag(REGISTRY)))
    spaces = spaces_by_server(keys, own_cluster)
    one, other = [await replica(own_cluster.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    one.index.enrol(W, "first")
    await until(lambda: all("w" in each.index.replica.tenures for each in (one, other)))
    dead, back = [node for node in own_cluster.nodes if node is not registry]
    for node in (dead, back):
        one.index.hold(spaces[node.port], path(node.port, 1), W)
    await until(lambda: one.index.replica.blocks == 4)
    for node in (dead, back):
        node.kill()
    await until(lambda: not one.reader.up)
    for node in (dead, back):
        one.index.hold(spaces[node.port], path(node.port, 1, 3), W)
    await until(lambda: len(one.index._away.paths) == 2)
    back.start()
    told, waits = spaces[back.port], spaces[dead.port]
    await until(lambda: other.index.match(told, path(back.port, 1, 3)).confirmed == {W: 3})
    assert not one.reader.up
    # What is still to be told is not forgotten.
    assert one.index.match(waits, path(dead.port, 1, 3)).confirmed == {W: 3}
    dead.start()
    await until(lambda: other.index.match(waits, path(dead.port, 1, 3)).confirmed == {W: 3})
    await until(lambda: one.reader.up)
    for each in (one, other):
        await each.close()


@pytest.mark.parametrize(
    ("own_cluster", "how"), [(15_000, "as asked"), (5000, "because it died")], indirect=["own_cluster"]
)
async def test_an_index_goes_on_when_a_replica_takes_its_servers_place(own_cluster, how):
    keys = Keys(prefix="t", shards=16)
    spaces = spaces_by_server(keys, own_cluster)
    replicas = [await replica(own_cluster.url, keys, time.monotonic, **BOUNDS) for _ in range(2)]
    one, other = replicas
    one.index.enrol(W, "first")
    await until(lambda: all("w" in each.index.replica.tenures for each in replicas))
    registry = await in_thread(own_cluster.owner, slot_of(keys.tag(REGISTRY)))
    leaving = next(node for node in own_cluster.nodes if node is not registry)
    space = spaces[leaving.port]
    successor = await in_thread(own_cluster.add_replica, leaving)
    one.index.hold(space, path(1, 2), W)
    await until(lambda: other.index.match(space, path(1, 2)).confirmed == {W: 2})
    await asyncio.sleep(0.3)  # A replica is told a moment later.

    number = 10

    async def traffic():
        nonlocal number
        while True:
            for each in replicas:
                each.index.hold(space, path(1, 2, number), W)
                number += 1
            await asyncio.sleep(0.01)

    running = asyncio.create_task(traffic())
    if how == "as asked":
        await in_thread(successor.ask, "CLUSTER", "FAILOVER")
    else:
        await in_thread(leaving.kill)
    await until(lambda: successor.replication["role"] == "master")
    await asyncio.sleep(0.5)
    running.cancel()
    for each in replicas:
        await until(lambda each=each: each.reader.up and not each.scripts.busy)
    one.index.hold(space, path(1, 2, 9, 9), W)
    await until(lambda: other.index.match(space, path(1, 2, 9, 9)).confirmed == {W: 4})
    for each in replicas:
        await each.arrived()
        assert each.index.match(space, path(1, 2)).confirmed == {W: 2}
    first, second = (each.index.replica for each in replicas)
    assert {key: node.run for key, node in first.nodes.items()} == {
        key: node.run for key, node in second.nodes.items()
    }
    tree = {
        field[1:]: run
        for field, run in successor._client.hgetall(keys.tree(tree_id(space))).items()
        if field[:1] == b"R"
    }
    assert tree == {key.to_bytes(8, "little"): node.run.tobytes() for key, node in first.nodes.items()}
    for each in replicas:
        await each.close()


async def test_a_cluster_that_is_away_fails_calls_in_bounded_time(own_cluster, scripts):
    assert await scripts.call(APPEND, ["a"], [1]) == 1
    for node in own_cluster.nodes:
        node.kill()
    never_up = ScriptCaller(own_cluster.url)
    async with asyncio.timeout(120):
        for _ in range(3):
            with pytest.raises(RedisDown):
                await scripts.call(APPEND, ["a"], [1])
            with pytest.raises(RedisDown):
                await scripts.ping()
        with pytest.raises(RedisDown):
            await never_up.call(APPEND, ["a"], [1])
    await never_up.close()
    assert not scripts.busy


async def test_what_waits_for_a_server_that_is_away_is_bounded(own_cluster, scripts, monkeypatch):
    monkeypatch.setattr("radix_cache.redis.scripts.CALLS_WAITING_MAX", 5)
    mine, others = (
        "{a}",
        next(
            f"{{{n}}}"
            for n in range(99)
            if own_cluster.owner(slot_of(f"{{{n}}}")) is not own_cluster.owner(slot_of("{a}"))
        ),
    )
    await asyncio.gather(*(scripts.call(APPEND, [name], [1]) for name in (mine, others)))
    own_cluster.owner(slot_of(mine)).kill()
    first = scripts.call(APPEND, [mine], [1])
    await until(lambda: scripts._redis._waiting)  # It has come back, and waits for its server.
    calls = [scripts.call(APPEND, [mine], [1]) for _ in range(10)]
    refused = [call for call in calls if call.done()]
    assert len(refused) >= 5
    assert await scripts.call(APPEND, [others], [2]) == 2
    assert {type(e) for e in await asyncio.gather(first, *calls, return_exceptions=True)} == {RedisDown}


async def test_a_server_that_is_no_cluster_is_an_error_that_names_it(tmp_path):
    port, bus = free_ports(2)
    alone = Node(tmp_path / "alone", port, bus, ["--cluster-enabled", "no"])
    alone.start()
    caller = ScriptCaller(f"redis+cluster://127.0.0.1:{port}")
    try:
        with pytest.raises(RedisDown, match="cluster support disabled"):
            await caller.call(APPEND, ["a"], [1])
    finally:
        await caller.close()
        alone.kill()


async def test_a_password_is_given_to_every_server(own_cluster):
    for node in own_cluster.nodes:
        node.ask("CONFIG", "SET", "requirepass", "s e/cret")
    where = own_cluster.url.replace("://", "://:s%20e%2Fcret@")
    caller = ScriptCaller(where)
    names = [f"list:{{{number}}}" for number in range(12)]
    assert await asyncio.gather(*(caller.call(APPEND, [name], [0]) for name in names)) == [1] * 12
    await caller.close()
    wrong = ScriptCaller(own_cluster.url.replace("://", "://:wrong@"))
    with pytest.raises(RedisDown, match="AUTH"):
        await wrong.call(APPEND, ["a"], [1])
    await wrong.close()


async def test_quotas_hold_while_their_slot_moves(own_cluster, scripts):
    store = RedisQuotaStore(scripts, 10.0)
    scope = Scope(name="t", limits=(Limit(unit="requests", amount=40, window=Window(seconds=3600)),))
    slot, granted, refused, number = slot_of("rg:{acme}:x"), 0, 0, 0

    async def one(number):
        reservation = Reservation(
            id=f"r{number}", organisation="acme", scopes=(scope,), cost=Cost(prompt_tokens=1)
        )
        return await store.reserve(reservation)

    asked = []
    source = await in_thread(own_cluster.owner, slot)
    target = next(node for node in own_cluster.nodes if node is not source)
    for step in range(6):
        if step == 2:
            await in_thread(own_cluster.begin_move, slot, target)
        asked += [asyncio.create_task(one(number + at)) for at in range(10)]
        number += 10
        await asyncio.sleep(0.02)
        if step == 3:
            await in_thread(own_cluster.move_keys, slot, source, target)
            await in_thread(own_cluster.end_move, slot, target)
    for outcome in await asyncio.gather(*asked):
        granted += isinstance(outcome, Lease)
        refused += not isinstance(outcome, Lease)
    assert (granted, refused) == (40, 20)


async def test_a_slot_that_moves_at_once_as_valkey_9_does_it_loses_no_call_and_no_order(own_cluster, scripts):
    key, slot = "list:{whole}", slot_of("{whole}")
    source = own_cluster.owner(slot)
    target = next(node for node in own_cluster.nodes if node is not source)
    answers = [scripts.call(APPEND, [key], [0])]
    try:
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
    except redis.ResponseError as err:
        pytest.skip(f"this server moves slots key by key only: {err}")
    deadline = time.monotonic() + 60
    while (await in_thread(own_cluster.owner, slot)) is source:
        assert time.monotonic() < deadline
        answers += [scripts.call(APPEND, [key], [len(answers) + at]) for at in range(5)]
        await asyncio.sleep(0.002)
    answers += [scripts.call(APPEND, [key], [len(answers) + at]) for at in range(5)]
    assert await asyncio.gather(*answers) == [number + 1 for number in range(len(answers))]
    assert await scripts.ask("LRANGE", key, 0, -1) == [b"%d" % number for number in range(len(answers))]
