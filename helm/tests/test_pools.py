"""Pools of SGLang and vLLM: their flags are the launcher's, and gateways find, scale and reach them."""

import asyncio
import base64
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cli.support.published_ports import choose_ports
from helm.tests.rendering import Objects, cluster, gateway, helm, one, render
from helm.tests.test_chart_settings import settings_of
from workers.launching.launch import EngineLaunch, command_line, data_parallel_size
from workers.probing.installed_engine import EngineAbilities
from workers.worker import Role

HUB = {"name": "m", "path": "org/m"}
ANY = "0.0.0.0"  # noqa: S104
NEWEST = EngineAbilities(binds=True, load_feed=True)


def pools(*given: dict[str, Any], **values: Any) -> Objects:
    workers = {"embedded": {"replicas": 0}, "pools": list(given)}
    return render({"workers": workers, **values}, None, "--kube-version", "1.36.0")


def engine(objects: Objects, pool: str) -> dict[str, Any]:
    found: dict[str, Any] = template(objects, pool)["spec"]["containers"][0]
    return found


def template(objects: Objects, pool: str) -> dict[str, Any]:
    found: dict[str, Any] = one(objects, "StatefulSet", f"-pool-{pool}")["spec"]["template"]
    return found


FLAGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vllm": ({"engine": "vllm"}, {}),
    "sglang": ({"engine": "sglang"}, {}),
    "vllm page size": ({"engine": "vllm", "pageSize": 64}, {"page_size": 64}),
    "sglang page size": ({"engine": "sglang", "pageSize": 1}, {"page_size": 1}),
    "vllm prefill": ({"engine": "vllm", "role": "prefill"}, {"role": Role.PREFILL}),
    "sglang prefill": (
        {"engine": "sglang", "role": "prefill"},
        {"role": Role.PREFILL, "bootstrap_port": 8998},
    ),
    "sglang decode": ({"engine": "sglang", "role": "decode"}, {"role": Role.DECODE, "bootstrap_port": 8998}),
    "vllm sizes": ({"engine": "vllm", "tensorParallel": 4, "dataParallel": 2}, {}),
    "sglang sizes": ({"engine": "sglang", "tensorParallel": 4, "dataParallel": 3}, {}),
    "vllm adapters": ({"engine": "vllm", "lora": [{"name": "sql", "path": "/a"}]}, {}),
    "sglang adapters": ({"engine": "sglang", "lora": [{"name": "sql", "path": "/a"}]}, {}),
    "own page size": ({"engine": "vllm", "extraArgs": ["--block-size", "16"]}, {}),
    "own events": ({"engine": "sglang", "extraArgs": ["--kv-events-config={}", "--tp-size=2"]}, {}),
    "further flags": ({"engine": "sglang", "extraArgs": ["--mem-fraction-static", "0.8"]}, {}),
}


@pytest.mark.parametrize(("pool", "launch"), FLAGS.values(), ids=FLAGS)
def test_an_engine_has_the_flags_that_the_launcher_gives(
    pool: dict[str, Any], launch: dict[str, Any]
) -> None:
    role = pool.get("role", "both")
    other = {"name": "other", "role": {"prefill": "decode", "decode": "prefill", "both": "both"}[role]}
    container = engine(pools({"name": "a", "model": HUB, **pool}, {"model": HUB, **other}), "a")
    words = [*container["command"], *container["args"]]
    # What stands behind the launcher's own flags is the caller's.
    sizes = ("--tensor-parallel-size", "--data-parallel-size", "--enable-lora", "--api-key")
    starts = [at for at, word in enumerate(words) if word in (*sizes, *pool.get("extraArgs", ()))]
    more = tuple(words[min(starts) :]) if starts else ()
    ports = choose_ports(
        pool["engine"],
        ANY,
        30001,
        ranks=data_parallel_size(more),
        load_feed=None,
        can=NEWEST,
    )
    assert words == command_line(
        EngineLaunch(
            engine=pool["engine"],
            model="org/m",
            python="python3",
            host=ANY,
            port=30000,
            served_model_name="m",
            events_port=ports.events_port,
            replay_port=ports.replay_port,
            loads_port=ports.loads_port if pool["engine"] == "sglang" else None,
            events_at=ports.events_at,
            more=more,
            **launch,
        )
    )
    assert list(pool.get("extraArgs", ())) == list(more[len(more) - len(pool.get("extraArgs", ())) :])


def test_gateways_watch_the_pools_service_and_send_the_key(tmp_path: Path) -> None:
    objects = pools(
        {"name": "chat", "engine": "vllm", "model": HUB},
        {"name": "pre", "engine": "sglang", "role": "prefill", "model": {**HUB, "name": "q"}},
        {"name": "dec", "engine": "sglang", "role": "decode", "model": {**HUB, "name": "q"}},
    )
    found = settings_of(objects, tmp_path).discovery
    assert [(each.name, each.worker_kind, each.role, each.priority) for each in found] == [
        ("release-radixgate-pool-chat-http", "vllm", "both", "on"),
        ("release-radixgate-pool-pre-http", "sglang", "prefill", "on"),
        ("release-radixgate-pool-dec-http", "sglang", "decode", "on"),
    ]
    service = one(objects, "Service", "-pool-chat-http")["spec"]
    labels = template(objects, "chat")["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert [port["name"] for port in service["ports"]] == [found[0].port_name]
    reference = {"secretKeyRef": {"name": "release-radixgate-generated", "key": "worker-key"}}
    variables = {v["name"]: v.get("valueFrom") for v in gateway(objects)["env"]}
    assert variables["RADIXGATE_OWN_WORKERS_KEY"] == reference
    for pool, name in (("chat", "VLLM_API_KEY"), ("pre", "RADIXGATE_WORKER_KEY")):
        assert {v["name"]: v.get("valueFrom") for v in engine(objects, pool)["env"]}[name] == reference
    args = engine(objects, "pre")["args"]
    assert args[args.index("--api-key") + 1] == "$(RADIXGATE_WORKER_KEY)"
    assert all(each.api_key is not None for each in found)


def test_the_key_is_kept_by_an_upgrade_and_may_be_the_operators() -> None:
    values = {"workers": {"pools": [{"name": "a", "model": HUB}]}}
    kept = base64.b64encode(b"a key of before").decode()
    with cluster({"release-radixgate-generated": {"worker-key": kept}}) as server:
        done = helm(values, *server)
    assert done.returncode == 0, done.stderr
    assert f"worker-key: {kept}" in done.stdout
    own = {"existingSecret": "gpu", "key": "k"}
    objects = render({"workers": {"pools": [{"name": "a", "model": HUB}], "apiKey": own}})
    assert "worker-key" not in one(objects, "Secret", "-generated")["data"]
    variables = {v["name"]: v.get("valueFrom") for v in engine(objects, "a")["env"]}
    assert variables["VLLM_API_KEY"] == {"secretKeyRef": {"name": "gpu", "key": "k"}}


def test_only_gateways_reach_the_ports_at_which_an_engine_publishes() -> None:
    several = {"name": "a", "engine": "sglang", "dataParallel": 4, "model": HUB}
    objects = pools(several, networkPolicy={"enabled": True, "egress": {"enabled": True}})
    policy = one(objects, "NetworkPolicy", "-pool-a")["spec"]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    (ports,) = rule["ports"]
    used = {int(port) for port in re.findall(r"tcp://\*:(\d+)", " ".join(engine(objects, "a")["args"]))}
    assert used == {30001, 30005, 30009}
    assert (ports["port"], ports["endPort"]) == (30000, max(used) + 3)
    out = one(objects, "NetworkPolicy")["spec"]["egress"]
    assert [ports] in [each["ports"] for each in out]
    # The API of the cluster, in which the gateway watches the Service.
    assert [{"port": p, "protocol": "TCP"} for p in (443, 6443)] in [each["ports"] for each in out]
    # The model's hub; a model of a claim needs nothing from outside.
    assert [each["ports"][0]["port"] for each in policy["egress"]] == [53, 443]
    claimed = {"name": "a", "model": {"name": "m", "source": "claim", "existingClaim": "models"}}
    objects = pools(claimed, networkPolicy={"enabled": True})
    assert "egress" not in one(objects, "NetworkPolicy", "-pool-a")["spec"]


def test_halves_of_pairs_and_nodes_of_a_group_reach_each_other() -> None:
    objects = pools(
        {"name": "pre", "role": "prefill", "model": HUB},
        {"name": "dec", "role": "decode", "model": HUB},
        {"name": "big", "nodes": 2, "tensorParallel": 2, "model": HUB},
        networkPolicy={"enabled": True},
    )
    for pool, peers in (("pre", ["pool-pre", "pool-dec"]), ("big", ["pool-big"])):
        spec = one(objects, "NetworkPolicy", f"-pool-{pool}")["spec"]
        among = [rule for rule in spec["ingress"] if "ports" not in rule]
        (peer,) = among[0]["from"]
        assert peer["podSelector"]["matchExpressions"][0]["values"] == peers
        assert {"to": [peer]} in spec["egress"]
    env = {v["name"]: v.get("valueFrom") for v in engine(objects, "pre")["env"]}
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_copy_over_several_nodes_is_a_group_whose_first_node_serves(kind: str) -> None:
    pool = {"name": "big", "engine": kind, "nodes": 2, "tensorParallel": 16, "model": HUB}
    objects = pools(pool)
    spec = one(objects, "LeaderWorkerSet", "-pool-big")["spec"]["leaderWorkerTemplate"]
    assert spec["size"] == 2
    leader, follower = spec["leaderTemplate"], spec["workerTemplate"]
    selector = one(objects, "Service", "-pool-big-http")["spec"]["selector"]
    assert selector.items() <= leader["metadata"]["labels"].items()
    assert not selector.items() <= follower["metadata"]["labels"].items()
    first, other = (each["spec"]["containers"][0] for each in (leader, follower))
    assert first["resources"]["limits"] == other["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert "readinessProbe" in first
    assert "readinessProbe" not in other
    ranks = [c["args"][c["args"].index("--node-rank") + 1] for c in (first, other)]
    assert ranks == ["0", "$(LWS_WORKER_INDEX)"]
    address = {"vllm": "$(LWS_LEADER_ADDRESS)", "sglang": "$(LWS_LEADER_ADDRESS):20000"}[kind]
    assert address in first["args"]
    assert ("--headless" in other["args"]) is (kind == "vllm")
    assert not [o for o in objects if o["kind"] == "StatefulSet" and "pool" in o["metadata"]["name"]]


SOURCES: dict[str, tuple[dict[str, Any], str, dict[str, Any] | None]] = {
    "hub": ({"path": "org/m", "token": {"existingSecret": "hub", "key": "t"}}, "org/m", None),
    "claim": (
        {"source": "claim", "existingClaim": "c", "path": "llama"},
        "/models/llama",
        {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
    ),
    "hostPath": (
        {"source": "hostPath", "hostPath": "/srv"},
        "/models",
        {"hostPath": {"path": "/srv", "type": "Directory"}},
    ),
    "image": (
        {"source": "image", "image": "r/m:1", "subPath": "w"},
        "/models",
        {"image": {"reference": "r/m:1", "pullPolicy": "IfNotPresent"}},
    ),
}


@pytest.mark.parametrize(("model", "place", "volume"), SOURCES.values(), ids=SOURCES)
def test_a_model_comes_from_a_hub_a_claim_a_node_or_an_image(
    model: dict[str, Any], place: str, volume: dict[str, Any] | None
) -> None:
    objects = pools({"name": "a", "model": {"name": "m", **model}})
    container, spec = engine(objects, "a"), template(objects, "a")["spec"]
    assert container["args"][container["args"].index("--model") + 1] == place
    volumes = {each.pop("name"): each for each in spec["volumes"]}
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    variables = {v["name"]: v for v in container["env"]}
    if volume is None:
        assert "models" not in volumes
        assert variables["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "t"}
    else:
        assert volumes["models"] == volume
        assert mounts["models"]["mountPath"] == "/models"
        assert mounts["models"].get("subPath") == model.get("subPath")
        assert variables["HF_HUB_OFFLINE"]["value"] == "1"


def test_downloads_are_kept_on_a_claim_of_each_engine_or_on_one_of_all() -> None:
    objects = pools({"name": "a", "model": HUB, "cache": {"size": "100Gi"}})
    (claim,) = one(objects, "StatefulSet", "-pool-a")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "cache"
    assert "cache" not in {volume["name"] for volume in template(objects, "a")["spec"]["volumes"]}
    objects = pools({"name": "a", "model": HUB, "cache": {"existingClaim": "hub"}})
    volumes = {each.pop("name"): each for each in template(objects, "a")["spec"]["volumes"]}
    assert volumes["cache"] == {"persistentVolumeClaim": {"claimName": "hub"}}
    assert "volumeClaimTemplates" not in one(objects, "StatefulSet", "-pool-a")["spec"]


def test_gpus_are_those_of_the_parallel_sizes_unless_told_otherwise() -> None:
    def limits(**more: Any) -> dict[str, Any]:
        container = engine(pools({"name": "a", "model": HUB, **more}), "a")
        found: dict[str, Any] = container["resources"].get("limits", {})
        return found

    assert limits() == {"nvidia.com/gpu": 1}
    assert limits(tensorParallel=2, dataParallel=4) == {"nvidia.com/gpu": 8}
    assert limits(tensorParallel=8, gpu={"count": 4}) == {"nvidia.com/gpu": 4}
    assert limits(gpu={"count": 0}) == {}
    assert limits(gpu={"resource": "amd.com/gpu"}) == {"amd.com/gpu": 1}


def test_long_names_of_pools_stay_valid() -> None:
    name = "n" * 24
    found = render({"nameOverride": "r" * 60, "workers": {"pools": [{"name": name, "model": HUB}]}})
    owner = [o for o in found if o["kind"] == "StatefulSet" and o["metadata"]["name"].endswith(name)]
    assert len(owner) == 1
    assert all(len(o["metadata"]["name"]) <= 63 for o in found)
    assert len(owner[0]["metadata"]["name"]) <= 52


# ---- Before the end of a pod


async def drain(metrics: list[str], tmp_path: Path, seconds: str = "60") -> int:
    """Run the hook of a pod against an engine that shows these metrics, the last ones for ever; count readings."""
    reads = 0

    async def show(_: web.Request) -> web.Response:
        nonlocal reads
        reads += 1
        return web.Response(text=metrics[min(reads, len(metrics)) - 1])

    app = web.Application()
    app.router.add_get("/metrics", show)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    command = engine(pools({"name": "a", "model": HUB}), "a")["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["python3", "-c"]
    assert command[3] == "http://127.0.0.1:30000/metrics"
    script = command[2].replace("NOTICE_SECONDS = 5.0", "NOTICE_SECONDS = 0.0")
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, url, seconds, cwd=tmp_path)
    assert await process.wait() == 0
    await runner.cleanup()
    return reads


async def test_a_pod_ends_once_its_engine_runs_no_request_any_more(tmp_path: Path) -> None:
    text = 'vllm:num_requests_running{{model_name="m"}} {}\nvllm:num_requests_waiting{{model_name="m"}} {}\nx 7\n'
    assert await drain([text.format(2.0, 1.0), text.format(0.0, 1.0), text.format(0.0, 0.0)], tmp_path) == 3
    text = 'sglang:num_running_reqs{{model_name="m"}} {}\nsglang:num_queue_reqs{{model_name="m"}} 0\n'
    assert await drain([text.format(3), text.format("0.0")], tmp_path) == 2


async def test_an_engine_that_says_nothing_is_waited_for_to_the_bound(tmp_path: Path) -> None:
    assert await drain(["# no such metrics"], tmp_path, "1.5") >= 1
