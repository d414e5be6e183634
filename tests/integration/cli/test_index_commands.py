"""`radixgate index` on a real Valkey: counts, drawings, checks, repairs, removals."""

import asyncio
import json
import os
import re
import signal
import struct
import sys
from array import array
from uuid import uuid4

import aiohttp
import pytest
import redis.asyncio as redis
import yaml

from radix_cache.namespace import Namespace
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.redis.topology import slot_of
from radix_cache.shared.keys import Keys, tree_id
from radix_cache.shared.tree_store import TreeStore
from radix_cache.tiers import Tier
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.command_line import run_command
from tests.stage.forks import fork_blocking

KEYS = Keys(prefix="rg")
ACME = Namespace(model="llama", block_size=64, group="tenant:acme")
ACME_QWEN = Namespace(model="qwen", block_size=16, group="tenant:acme")
TEAM = Namespace(model="llama", block_size=64, group="group:team")
ALL = Namespace(model="llama", block_size=64)


def path(text):
    """A hash for each prefix: paths that begin alike have their beginning in common."""
    return array("Q", [hash_of(text[: end + 1]) for end in range(len(text))])


def hash_of(text):
    return int.from_bytes(text.encode().rjust(8, b"\0")[-8:], "big") * 0x9E3779B97F4A7C15 % 2**64


def key_of(text):
    return hash_of(text).to_bytes(8, "little")


class Cli:
    """`radixgate index ...` with a settings file that names a Valkey."""

    def __init__(self, file):
        self.file = file

    async def __call__(self, *arguments):
        return await asyncio.to_thread(self.run, *arguments)

    def run(self, *arguments):
        command, *rest = arguments
        return run_command("index", command, "--config", self.file, *rest)


@pytest.fixture
def cli(tmp_path, own_valkey):
    tree = {
        "redis": {"url": own_valkey.url},
        "tenants": [
            {"id": "acme"},
            {"id": "initech", "isolation": {"mode": "group", "group": "team"}},
            {"id": "open", "isolation": {"mode": "shared"}},
        ],
    }
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(tree))
    return Cli(file)


@pytest.fixture
async def store(own_valkey):
    scripts = ScriptCaller(own_valkey.url)
    yield TreeStore(scripts, KEYS)
    await scripts.close()


@pytest.fixture
async def client(own_valkey):
    async with redis.from_url(own_valkey.url) as client:
        yield client


@pytest.fixture
async def planted(store):
    """Two workers; two tenants, two models, a shared cache. Gives the tenures."""
    a, b = await store.tenure("gpu-a", "one"), await store.tenure("gpu-b", "one")
    await store.hold(ACME, path("aaaabbbb"), a)
    await store.hold(ACME, path("aaaabbcc"), b)
    await store.hold(ACME, path("aaaabbccdd"), b)
    await store.hold(ACME_QWEN, path("qqq"), a)
    await store.hold(TEAM, path("tttt"), a)
    await store.hold(ALL, path("zz"), b)
    return a, b


async def test_stats_count_by_model_and_group_and_by_worker(cli, store, planted):
    await store.predict(TEAM, path("tttttt"), planted[1], b"p" * 16, 60_000)
    code, output, _ = await cli("stats", "--json")
    assert code == 0
    found = json.loads(output)
    models = {(row.pop("model"), row.pop("group")): row for row in found["models"]}
    acme = {"namespaces": 1, "nodes": 3, "blocks": 12, "tokens": 12 * 64, "predictions": 0}
    assert models == {
        ("llama", "tenant:acme"): acme,
        ("qwen", "tenant:acme"): {"namespaces": 1, "nodes": 1, "blocks": 3, "tokens": 48, "predictions": 0},
        ("llama", "group:team"): {"namespaces": 1, "nodes": 1, "blocks": 4, "tokens": 256, "predictions": 1},
        ("llama", ""): {"namespaces": 1, "nodes": 1, "blocks": 2, "tokens": 128, "predictions": 0},
    }
    workers = {row.pop("worker"): row for row in found["workers"]}
    assert workers == {
        "gpu-a": {"namespaces": 3, "nodes": 4, "blocks": 15, "tokens": 12 * 64 + 48, "predictions": 0}
        | {"gpu_blocks": 15, "host_blocks": 15},
        "gpu-b": {"namespaces": 2, "nodes": 3, "blocks": 12, "tokens": 12 * 64, "predictions": 1}
        | {"gpu_blocks": 12, "host_blocks": 12},
    }
    assert found["total"] == {"namespaces": 4, "nodes": 6, "blocks": 21, "tokens": 1200, "predictions": 1}
    assert found["redis_memory_bytes"] > 100_000


async def test_stats_are_tables_for_people(cli, planted):
    code, output, _ = await cli("stats")
    assert code == 0
    assert re.search(r"^model +group +namespaces +nodes +blocks +tokens +predictions$", output, re.M)
    assert re.search(r"^llama +\(shared\) +1 +1 +2 +128 +0$", output, re.M)
    assert re.search(r"^gpu-b +2 +3 +12 +768 +0 +12 +12$", output, re.M)
    assert re.search(r"^Redis uses [0-9.]+ MiB", output, re.M)


async def test_what_an_ended_tenure_has_left_is_counted_apart(cli, store, planted):
    await store.tenure("gpu-a", ends=planted[0])
    found = json.loads((await cli("stats", "--json"))[1])
    assert found["workers"][0] | {"worker": "gpu-a", "blocks": 0} == found["workers"][0]
    assert found["remains"]["blocks"] == 15


async def test_show_draws_the_tree(cli, planted):
    code, output, _ = await cli("show", "--model", "llama", "--tenant", "acme")
    assert code == 0
    lines = [re.sub(r"\d+ s ago", "now", line) for line in output.splitlines()]
    assert lines[:2] == [
        "llama  tenant:acme  blocks of 64 tokens",
        "`-- 0-5  6 blocks, used now  gpu-a 6, gpu-b 6",
    ]
    assert {line[8:] for line in lines[2:4]} == {
        "6-7  2 blocks, used now  gpu-a 2",
        "6-9  4 blocks, used now  gpu-b 4",
    }
    assert (lines[2][:8], lines[3][:8]) == ("    |-- ", "    `-- ")
    assert lines[4:] == ["3 of 3 nodes shown."]


async def test_show_and_stats_count_what_lies_off_the_gpu(cli, store, planted):
    await store.shorten(ALL, path("zz"), planted[1], 0, Tier.GPU)
    await store.shorten(ALL, path("zz"), planted[1], 1, Tier.HOST)
    _, output, _ = await cli("show", "--tenant", "open")
    assert "gpu-b 2 (GPU 0, host 1)" in output
    workers = json.loads((await cli("stats", "--json"))[1])["workers"]
    assert [(row["blocks"], row["gpu_blocks"], row["host_blocks"]) for row in workers] == [
        (15, 15, 15),
        (12, 10, 11),
    ]


async def test_show_is_bounded_and_prints_how_much_it_leaves_out(cli, planted):
    _, output, _ = await cli("show", "-m", "llama", "-t", "tenant:acme", "--depth", 1)
    assert "gpu-b 6  (2 below)" in output
    assert output.endswith("1 of 3 nodes shown.\n")
    _, output, _ = await cli("show", "--nodes", 2)
    assert output.endswith("2 of 6 nodes shown.\n")


async def test_show_of_one_worker_leaves_out_what_it_does_not_hold(cli, planted):
    _, output, _ = await cli("show", "--worker", "gpu-b")
    assert "qwen" not in output
    assert output.endswith("3 of 3 nodes shown.\n")
    code, _, errors = await cli("show", "--worker", "gpu-z")
    assert (code, errors) == (
        1,
        "radixgate: the index has no worker 'gpu-z'; it has: gpu-a, gpu-b\n",
    )


async def test_a_tenant_is_found_by_its_group(cli, planted):
    for tenant, title in (
        ("initech", "group:team"),
        ("open", "(shared)"),
        ("", "(shared)"),
        ("group:team", "group:team"),
    ):
        _, output, _ = await cli("show", "--tenant", tenant)
        assert output.startswith(f"llama  {title}  blocks of 64 tokens\n")
        assert output.endswith("1 of 1 nodes shown.\n")


async def test_a_sound_tree_is_found_sound(cli, planted):
    code, output, _ = await cli("verify")
    assert (code, output) == (0, "4 namespaces, 6 nodes, 21 blocks: nothing is wrong.\n")


async def test_an_empty_redis_is_an_empty_index(cli):
    assert await cli("verify") == (0, "0 namespaces, 0 nodes, 0 blocks: nothing is wrong.\n", "")
    assert (await cli("show"))[:2] == (0, "0 of 0 nodes shown.\n")
    code, output, _ = await cli("clear", "--all", "--yes")
    assert (code, output) == (0, "The index has nothing that matches: nothing was cleared.\n")


HEAD = struct.Struct("<QIIIIBQQQ")
FIELDS = ("sequence", "depth", "length", "children", "used", "level", "last", "next", "above")


async def change(client, space, text, **values):
    """Writes other values into the head of the node that begins with this block."""
    tree, name = KEYS.tree(tree_id(space)), b"N" + key_of(text)
    raw = await client.hget(tree, name)
    head = dict(zip(FIELDS, HEAD.unpack_from(raw), strict=True)) | values
    await client.hset(tree, name, HEAD.pack(*head.values()) + raw[HEAD.size :])


async def hold(client, space, text, *holders):
    """Writes the holders of a node."""
    tree, name = KEYS.tree(tree_id(space)), b"N" + key_of(text)
    raw = await client.hget(tree, name)
    await client.hset(tree, name, raw[: HEAD.size] + b"".join(struct.pack("<II", *one) for one in holders))


async def drop(client, space, field, text):
    await client.hdel(KEYS.tree(tree_id(space)), field + key_of(text))


# The tree of ACME: aaaabb, and below it bb (gpu-a) and ccdd (gpu-b).
ROOT, LEFT, RIGHT = "a", "aaaabbb", "aaaabbc"

DAMAGE = {
    "a run is lost": (
        lambda client, a, b: drop(client, ACME, b"R", LEFT),
        "it has no run",
        "repaired",
    ),
    "a head is lost": (
        lambda client, a, b: drop(client, ACME, b"N", LEFT),
        "a run or holders without a head",
        "cleared",
    ),
    "a length does not fit the run": (
        lambda client, a, b: change(client, ACME, LEFT, length=3),
        "its run has 2 blocks, its head has 3",
        "repaired",
    ),
    "a last hash is another": (
        lambda client, a, b: change(client, ACME, RIGHT, last=7),
        "its run does not end with the last block of its head",
        "repaired",
    ),
    "children are miscounted": (
        lambda client, a, b: change(client, ACME, ROOT, children=3),
        "it has 2 children, its head has 3",
        "cleared",
    ),
    "a parent cannot be found": (
        lambda client, a, b: change(client, ACME, LEFT, above=7),
        "`above` leads to no node with block 5",
        "cleared",
    ),
    "a split leads nowhere": (
        lambda client, a, b: change(client, ACME, ROOT, next=7),
        "`next` leads to no node that begins where it ends",
        "cleared",
    ),
    "a holder has left the parent": (
        lambda client, a, b: hold(client, ACME, ROOT, (a, 6), (b, 5)),
        "holds it and not the whole node above",
        "repaired",
    ),
    "a holder holds too much": (
        lambda client, a, b: hold(client, ACME, RIGHT, (b, 9)),
        "holds 9 of 4 blocks",
        "repaired",
    ),
    "a leaf is longer than anybody holds": (
        lambda client, a, b: hold(client, ACME, RIGHT, (b, 2)),
        "a leaf of 4 blocks of which 2 are held",
        "repaired",
    ),
    "a tenure is nobody's": (
        lambda client, a, b: hold(client, ACME, ROOT, (a, 6), (b, 6), (2**32 - 2, 1)),
        "tenure 4294967294 was never given",
        "repaired",
    ),
    "a field is cut": (
        lambda client, a, b: client.hset(KEYS.tree(tree_id(ACME)), b"N" + key_of(LEFT), b"short"),
        "it cannot be decoded",
        "cleared",
    ),
    "a field is a stranger's": (
        lambda client, a, b: client.hset(KEYS.tree(tree_id(ACME)), b"X", b"?"),
        "a field of an unknown kind",
        "cleared",
    ),
    "the name is lost": (
        lambda client, a, b: client.hdel(KEYS.names(KEYS.shard(tree_id(ACME))), tree_id(ACME)),
        "the namespace has no name, so that no gateway reads it",
        "cleared",
    ),
    "the name is another's": (
        lambda client, a, b: client.hset(KEYS.names(KEYS.shard(tree_id(ACME))), tree_id(ACME), TEAM.packed()),
        "the name is not a namespace, or that of another one",
        "cleared",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_is_found_and_healed(what, cli, client, planted):
    plant, expected, outcome = DAMAGE[what]
    await plant(client, *planted)
    code, output, _ = await cli("verify")
    assert code == 1
    assert expected in output
    code, output, _ = await cli("verify", "--repair")
    assert code == 0, output
    assert re.search(rf"^.*  {tree_id(ACME).hex()}: {outcome}$", output, re.M), output
    assert output.endswith("After the repair: nothing is wrong.\n")
    # No other worker has lost anything.
    found = json.loads((await cli("stats", "--json"))[1])
    kept = {(row["model"], row["group"]): row["blocks"] for row in found["models"]}
    assert kept | {("qwen", "tenant:acme"): 3, ("llama", "group:team"): 4, ("llama", ""): 2} == kept
    if outcome == "repaired":
        assert kept["llama", "tenant:acme"] >= 6


async def test_a_node_that_cannot_be_read_hides_nothing_else(cli, client, planted):
    before = await blocks(cli)
    await client.hset(KEYS.tree(tree_id(ACME)), b"N" + key_of(LEFT), b"short")
    after = await blocks(cli)
    assert after[ACME.model, ACME.group] < before[ACME.model, ACME.group]
    assert {key: n for key, n in after.items() if key != (ACME.model, ACME.group)} == {
        key: n for key, n in before.items() if key != (ACME.model, ACME.group)
    }
    assert (await cli("show"))[0] == 0
    assert (await cli("verify"))[0] == 1


async def blocks(cli):
    found = json.loads((await cli("stats", "--json"))[1])
    return {(row["model"], row["group"]): row["blocks"] for row in found["models"]}


async def test_a_tenant_is_cleared(cli, planted):
    code, output, _ = await cli("clear", "--tenant", "acme", "--yes")
    assert (code, output) == (0, "  llama  tenant:acme\n  qwen  tenant:acme\nCleared 2 namespaces.\n")
    assert await blocks(cli) == {("llama", "group:team"): 4, ("llama", ""): 2}


async def test_a_model_of_a_tenant_is_cleared(cli, planted):
    assert (await cli("clear", "--tenant", "acme", "--model", "qwen", "--yes"))[0] == 0
    assert set(await blocks(cli)) == {("llama", "tenant:acme"), ("llama", "group:team"), ("llama", "")}


async def test_a_worker_is_cleared_and_begins_again(cli, client, store, planted):
    assert (await cli("clear", "--worker", "gpu-a", "--yes"))[0] == 0
    found = json.loads((await cli("stats", "--json"))[1])
    assert {row["worker"]: row["blocks"] for row in found["workers"]} == {"gpu-a": 0, "gpu-b": 12}
    assert await store.tenure("gpu-a") not in planted
    code, _, errors = await cli("clear", "--worker", "gpu-z", "--yes")
    assert code == 1
    assert "has no worker 'gpu-z'" in errors


async def test_everything_is_cleared_and_nothing_else(cli, client, planted):
    await client.set("rg:quota", "kept")
    await client.hdel(KEYS.names(KEYS.shard(tree_id(ALL))), tree_id(ALL))
    assert (await cli("clear", "--all", "--yes"))[0] == 0
    assert await blocks(cli) == {}
    assert [key async for key in client.scan_iter("*:tree:*")] == []
    assert await client.get("rg:quota") == b"kept"


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 130, 21), ("y", 0, 0)])
async def test_at_a_terminal_the_command_requires_a_confirmation(answer, code, left, cli, planted):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "gateway", "index", "clear", "--all", "--config", str(cli.file)]
    pipe = asyncio.subprocess.PIPE
    asked = await asyncio.create_subprocess_exec(*command, stdin=theirs, stdout=pipe, stderr=pipe)
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    output, errors = await asyncio.wait_for(asked.communicate(), 60)
    os.close(ours)
    assert asked.returncode == code
    assert b"Clear 4 namespaces? [y/N]" in output + errors
    assert sum((await blocks(cli)).values()) == left


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["clear"], "give --model and --tenant, or --worker, or --all"),
        (["clear", "--all", "--model", "m"], "give --model and --tenant, or --worker, or --all"),
        (["clear", "--all"], "there is no terminal to ask for confirmation; give --yes"),
        (["clear", "--worker", "gpu-a"], "there is no terminal to ask for confirmation; give --yes"),
        (["show", "--nodes", "0"], "Invalid value for '--nodes'"),
        (["verify", "--set", "redis.nope=1"], "$.redis.nope: unknown setting"),
    ],
)
async def test_wrong_use_is_one_line_and_changes_nothing(arguments, expected, cli, planted):
    code, _, errors = await cli(*arguments)
    assert code == 2
    assert expected in errors
    assert len(errors.splitlines()) == 1
    assert sum((await blocks(cli)).values()) == 21


@pytest.mark.parametrize("command", ["stats", "show", "verify", "clear"])
async def test_a_redis_that_is_away_is_one_line(command, cli, own_valkey):
    own_valkey.kill()
    code, output, errors = await cli(command, *(["--all", "--yes"] if command == "clear" else []))
    assert (code, output) == (1, "")
    assert errors.startswith("radixgate: Redis (redis.url): ")
    assert len(errors.splitlines()) == 1


class Serving:
    """`radixgate serve` with an embedded Valkey."""

    def __init__(self, file):
        with file.with_suffix(".log").open("ab") as errors:
            self.process = fork_blocking("gateway", "serve", "--config", str(file), errors=errors)
        self.url = re.search(r"ready at (\S+)", self.process.stdout.readline())[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


async def test_the_embedded_valkey_is_found_while_its_gateway_runs(tmp_path):
    file = tmp_path / "gateway.yaml"
    cli = Cli(file)
    async with ScriptedWorker() as worker:
        tree = {
            "workers": [{"id": "a", "kind": "sglang", "url": worker.url, "models": ["m"]}],
            "listen": {"port": 0},
            "admin": {"port": 0},
            "state_directory": str(tmp_path / "state"),
            "drain": {"notice_seconds": 0, "seconds": 1},
        }
        file.write_text(yaml.safe_dump(tree))
        with Serving(file) as serving:
            async with aiohttp.ClientSession() as http:
                body = {"model": "m", "messages": [{"role": "user", "content": "a long prompt " * 200}]}
                async with http.post(serving.url + "/v1/chat/completions", json=body) as response:
                    assert response.status == 200
            async with asyncio.timeout(60):
                while not await blocks(cli):
                    await asyncio.sleep(0.05)
            assert list(await blocks(cli)) == [("m", "tenant:default")]
            assert (await cli("verify"))[0] == 0
            assert "tenant:default" in (await cli("show"))[1]
            assert (await cli("clear", "--tenant", "default", "--yes"))[0] == 0
            assert await blocks(cli) == {}
            serving.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(serving.process.wait, 10) == 0
        gone = f"radixgate: no gateway runs on the state directory {tmp_path / 'state'}"
        code, _, errors = await cli("stats")
        assert code == 1
        assert errors.startswith(gone)
        with Serving(file):
            pass  # Killed: what it left behind leads nowhere.
        assert (tmp_path / "state" / "valkey.socket").exists()
        await asyncio.sleep(0.5)
        code, _, errors = await cli("stats")
        assert code == 1
        assert errors.startswith(gone)
        assert len(errors.splitlines()) == 1


async def test_on_a_cluster_every_server_is_looked_at(cluster, tmp_path):
    """A tree on each server that has lost its name can only be found by looking at all keys of all servers."""
    prefix = f"t{uuid4().hex}"
    keys, spaces = Keys.of_redis(cluster.url, prefix), {}
    for number in range(1000):
        space = Namespace(model=f"m{number}", block_size=16)
        server = cluster.owner(slot_of(keys.tag(keys.shard_of(space, path("abc")))))
        spaces.setdefault(server.port, space)
        if len(spaces) == 3:
            break
    scripts = ScriptCaller(cluster.url)
    store = TreeStore(scripts, keys)
    tenure = await store.tenure("gpu-a", "one")
    for space in spaces.values():
        await store.hold(space, path("abcd"), tenure)
        tree = keys.tree_of(space, path("abcd")[0])
        await scripts.ask("HDEL", keys.names(keys.shard(tree)), tree)
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"redis": {"url": cluster.url, "prefix": prefix}}))
    cli = Cli(file)
    code, output, _ = await cli("verify")
    assert (code, output.count("the namespace has no name")) == (1, 3)
    assert output.endswith("3 namespaces, 3 nodes, 12 blocks: 3 violations.\n")
    used = json.loads((await cli("stats", "--json"))[1])["redis_memory_bytes"]
    each = [node.ask("INFO", "memory")["used_memory"] for node in cluster.nodes]
    assert max(each) * 2 < used < sum(each) * 2
    code, output, _ = await cli("clear", "--all", "--yes")
    assert (code, output.splitlines()[-1]) == (0, "Cleared 3 namespaces.")
    assert (await cli("verify"))[:2] == (0, "0 namespaces, 0 nodes, 0 blocks: nothing is wrong.\n")
    await scripts.close()
