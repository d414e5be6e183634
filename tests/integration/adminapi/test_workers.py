"""Workers and routes in the admin API, and `radixgate route`. Scripted workers, real Valkey, SQLite."""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from math import inf

import pytest

from gateway.adminapi import openapi
from gateway.discovery.worker_registry import WorkerRegistry
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import FilledWorkers
from policies.admission.ttft_chance import SAMPLES_MIN
from policies.routing.checked_policy import PolicyContractBroken
from policies.routing.cost import CostPolicy
from radix_cache.match import WorkerId
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.command_line import run_command

TOKEN = "7be41c0d9a5f4e3288c6d1b0f7a9e253"
LONG = "word " * 400


@pytest.fixture
def operated(gateway, tmp_path):
    """Makes gateways with a database, where TOKEN is an owner's."""

    def start(*workers, **settings):
        url = f"sqlite:///{tmp_path}/tenants.db"
        return gateway(*workers, **{"database.url": url, "admin.token": TOKEN, **settings})

    return start


async def call(running, method, path, body=None):
    more = {"json": body} if body is not None else {}
    url = f"{running.admin}{openapi.BASE}{path}"
    async with running.http.request(
        method, url, headers={"Authorization": f"Bearer {TOKEN}"}, **more
    ) as response:
        return response.status, await response.json(content_type=None)


async def served(running, count=4):
    for number in range(count):
        async with running.chat(f"question {number}") as response:
            assert response.status == 200, await response.text()


async def explained(running, text, tenant="acme", model="m", **more):
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return await call(running, "POST", "/route", {"tenant": tenant, "body": body, **more})


async def test_a_pair_is_explained_by_the_worker_that_computes_the_prompt(operated):
    async with ScriptedWorker() as prefill, ScriptedWorker() as decode:
        prefill.kv_tokens_max, decode.kv_tokens_max = 60_000, 90_000
        async with operated(prefill, decode, roles=("prefill", "decode")) as running:
            text = "word " * 4000
            async with running.chat(text) as response:
                assert response.status == 200, await response.text()
            status, found = await explained(running, text)
    assert status == 200
    (pair,) = found["workers"]
    assert (pair["worker"], pair["prefill_worker"], pair["rank"]) == ("w1", "w0", 1)
    assert pair["matched_tokens"] > 0
    assert pair["kv_tokens_max"] == 60_000


async def test_a_route_is_explained_by_the_windows_of_filled_workers(operated):
    filled = FilledWorkers(last_open=WorkerId("w0"), tokens=9000, patient_seconds=0.3)
    window = DispatchWindow(narrow=100, wide=5000, counts_own=True, filled=filled)
    waits = {}
    async with ScriptedWorker() as one, ScriptedWorker() as two, operated(one, two) as running:
        dispatch = running.here.gateway.services.dispatch
        dispatch.window.of_all_gateways.of = lambda model: window
        dispatch.fleet["w1"].known_slots = 1
        dispatch.fleet["w1"].load.streams += 1
        for name in ("voice", "chat", "batch"):
            _, found = await explained(running, "word " * 1000, service_class=name)
            assert found["service_class"] == name
            waits[name] = {each["worker"]: each["waits_because"] for each in found["workers"]}
            at_once = {each["worker"] for each in found["workers"] if each["has_room"]}
            assert at_once == {worker for worker, why in waits[name].items() if not why}
        dispatch.fleet["w1"].load.streams -= 1
    kept = "kept for more urgent requests"
    assert waits == {
        "voice": {"w0": "", "w1": "filled by less urgent requests"},
        "chat": {"w0": kept, "w1": ""},
        "batch": {"w0": kept, "w1": "full, the request would wait"},
    }


async def test_a_class_that_prefers_another_worker_to_being_late_is_explained_so(operated):
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        async with operated(one, two, **{"routing.policy": "round_robin"}) as running:
            fleet = running.here.gateway.fleet
            _, found = await explained(running, "hello", service_class="chat")
            slow, other = (each["worker"] for each in found["workers"])
            for _ in range(SAMPLES_MIN):
                fleet.learn_first_token(fleet[slow], tokens=10, ttft_ms=2000)
            _, found = await explained(running, "hello", service_class="code")
            first, late = found["workers"]
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            headers = {**running.headers("acme"), "x-radixgate-class": "code"}
            url = f"{running.url}/v1/chat/completions"
            async with running.http.post(url, json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
            answered = "w0" if one.seen else "w1"
            _, found = await explained(running, "hello", service_class="chat")
    assert (first["worker"], answered, late["worker"]) == (other, other, slow)
    assert first["has_room"]
    assert late["waits_because"] == "its first token would be late, and another worker's would not"
    assert all(each["has_room"] for each in found["workers"])


async def test_a_route_is_explained_by_the_windows_beside_tenants_that_crowd(operated):
    filled = FilledWorkers(last_open=WorkerId("w0"), tokens=9000, patient_seconds=inf, open_tokens=100)
    window = DispatchWindow(narrow=100, wide=500, contended=True, filled=filled)
    async with ScriptedWorker() as one, ScriptedWorker() as two, operated(one, two) as running:
        windows = running.here.gateway.services.dispatch.window.of_all_gateways
        windows.of = lambda model: window
        waits = []
        for work_share in (0.1, 0.6):
            windows.work_share = lambda model, tenant, target, share=work_share: share
            _, found = await explained(running, "word " * 1000)
            waits.append({each["worker"]: each["waits_because"] for each in found["workers"]})
    assert waits == [{"w0": "kept for shorter prompts", "w1": ""}, {"w0": "kept for other tenants", "w1": ""}]


async def test_a_worker_is_drained_and_resumed_and_all_of_it_is_written_down(operated):
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        one.info = {"max_running_requests": 64}
        async with operated(one, two, **{"routing.policy": "round_robin"}) as running:
            fleet = running.here.gateway.fleet
            two.then(gap=0.2, tokens=8)
            streams = [await running.chat("long", stream=True) for _ in range(2)]
            assert (await call(running, "POST", "/workers/w1/drain"))[0] == 202
            await running.until(lambda: fleet["w1"].health.state.value == "draining", 60)
            before = len(two.seen)
            await served(running)
            assert len(two.seen) == before
            for stream in streams:
                assert (await stream.text()).rstrip().endswith("[DONE]")
            _, page = await call(running, "GET", "/workers")
            assert [(w["id"], w["state"], w["found"], w["slots"]) for w in page["data"]] == [
                ("w0", "up", "settings", 64),
                ("w1", "draining", "settings", None),
            ]
            assert (await call(running, "POST", "/workers/w1/resume"))[0] == 202
            await running.until(lambda: fleet["w1"].health.state.value == "up", 60)
            _, told = await call(running, "GET", "/audit?kind=workers")
            assert [(entry["action"], entry["subject"]) for entry in told["data"]] == [
                ("resume", "w1"),
                ("drain", "w1"),
            ]


def that_sleeps():
    worker = ScriptedWorker()
    for path in ("/release_memory_occupation", "/resume_memory_occupation"):
        worker.others[path] = ("application/json", b"{}")
    return worker


async def test_a_worker_is_put_to_sleep_and_woken_and_all_of_it_is_written_down(operated):
    async with ScriptedWorker() as one, that_sleeps() as two, operated(one, two) as running:
        fleet = running.here.gateway.fleet
        assert await call(running, "POST", "/workers/w1/sleep") == (200, {"id": "w1", "state": "asleep"})
        assert len(two.seen) == 1
        await running.until(lambda: fleet["w1"].health.state.value == "draining", 60)
        await served(running)
        assert len(two.seen) == 1
        assert (await call(running, "POST", "/workers/w1/wake"))[0] == 200
        assert len(two.seen) == 2
        await running.until(lambda: fleet["w1"].health.state.value == "up", 60)
        _, told = await call(running, "GET", "/audit?kind=workers")
        assert [(entry["action"], entry["subject"]) for entry in told["data"]] == [
            ("wake", "w1"),
            ("sleep", "w1"),
        ]


async def test_a_worker_that_cannot_sleep_goes_on_as_before(operated):
    async with that_sleeps() as one, operated(one) as running:
        one.other_status = 500
        status, problem = await call(running, "POST", "/workers/w0/sleep")
        assert (status, "status 500 from /release_memory_occupation" in problem["detail"]) == (503, True)
        here = running.here.gateway
        registry = WorkerRegistry(here.scripts, here.settings.redis.prefix)
        assert await registry.draining() == frozenset()
        # One that was drained before stays so.
        await call(running, "POST", "/workers/w0/drain")
        await call(running, "POST", "/workers/w0/sleep")
        assert await registry.draining() == {"w0"}


async def test_a_worker_of_a_kind_that_cannot_sleep_gets_no_call_for_it(operated):
    async with ScriptedWorker() as one, operated(one, kind="openai") as running:
        status, problem = await call(running, "POST", "/workers/w0/wake")
        assert (status, problem["detail"]) == (409, "Workers of the kind openai cannot sleep.")


async def test_a_worker_at_work_is_not_put_to_sleep(operated):
    async with that_sleeps() as one, operated(one) as running:
        one.then(gap=3600.0)
        async with running.chat("long", stream=True) as response:
            await response.content.readline()
            status, problem = await call(running, "POST", "/workers/w0/sleep")
            assert (status, problem["detail"]) == (
                409,
                "The worker has 1 requests under way. Drain it, and let them end first.",
            )
        await running.until(lambda: running.idle)


async def test_an_engine_sleeps_when_its_gateways_have_been_notified(operated):
    async with ScriptedWorker() as one, that_sleeps() as two, operated(one, two) as running:
        worker, found = running.here.gateway.fleet["w1"], []
        sleep = worker.adapter.sleep

        async def told():
            found.append(worker.health.state.value)
            await sleep()

        worker.adapter.sleep = told
        assert (await call(running, "POST", "/workers/w1/sleep"))[0] == 200
        assert found == ["draining"]


async def test_what_comes_before_it_is_drained_is_not_slept_under(operated, monkeypatch):
    async with that_sleeps() as one, operated(one) as running, AsyncExitStack() as stack:
        drain = WorkerRegistry.drain

        async def drained(registry, workers):
            response = await stack.enter_async_context(running.chat("long", stream=True))
            await response.content.readline()
            await drain(registry, workers)

        one.then(gap=3600.0)
        monkeypatch.setattr(WorkerRegistry, "drain", drained)
        assert (await call(running, "POST", "/workers/w0/sleep"))[0] == 409
        here = running.here.gateway
        registry = WorkerRegistry(here.scripts, here.settings.redis.prefix)
        assert await registry.draining() == frozenset()
        await stack.aclose()
        await running.until(lambda: running.idle)


async def test_a_worker_is_registered_and_taken_out_again(operated):
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        async with operated(one, discovery="[{kind: redis}]") as running:
            fleet = running.here.gateway.fleet
            put = {"kind": "sglang", "url": two.url}
            assert (await call(running, "PUT", "/workers/late", put))[0] == 202
            await running.until(lambda: "late" in fleet and fleet["late"].health.state.value == "up", 60)
            _, page = await call(running, "GET", "/workers")
            assert {w["id"]: w["found"] for w in page["data"]}["late"] == "registry in Redis"
            assert (await call(running, "DELETE", "/workers/late"))[0] == 202
            await running.until(lambda: "late" not in fleet, 60)
            assert (await call(running, "DELETE", "/workers/late"))[0] == 404
            _, told = await call(running, "GET", "/audit/verification")
            assert told["broken"] is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/workers/nobody/drain", None, 404, "no worker 'nobody'"),
        ("POST", "/workers/nobody/sleep", None, 404, "no worker 'nobody'"),
        ("PUT", "/workers/w0", {"kind": "sglang", "url": "http://h:1"}, 409, "is defined in the settings"),
        ("PUT", "/workers/x", {"kind": "sglang", "url": "http://h:1"}, 409, "discovery has no"),
        ("PUT", "/workers/x", {"kind": "sglang", "url": "h"}, 400, "url"),
        ("POST", "/route", {"tenant": "nobody", "body": {"model": "m"}}, 404, "no tenant"),
        ("POST", "/route", {"tenant": "acme", "body": {"model": "m"}}, 400, "message"),
        (
            "POST",
            "/route",
            {"tenant": "acme", "body": {"model": "none", "messages": [{"role": "user", "content": "a"}]}},
            404,
            "none",
        ),
    ],
    ids=["unknown", "unknown-sleeper", "static", "unasked", "url", "tenant", "body", "model"],
)
async def test_what_cannot_be_is_refused_with_a_reason(operated, method, path, body, status, says):
    async with ScriptedWorker() as one, operated(one) as running:
        found, problem = await call(running, method, path, body)
        assert (found, says in problem["detail"]) == (status, True), problem


async def test_a_route_is_explained_and_nothing_is_sent_or_counted(operated):
    async with ScriptedWorker() as one, ScriptedWorker() as two, operated(one, two) as running:
        async with running.chat(LONG) as response:
            await response.read()
        await running.until(lambda: running.idle)
        holder, other = ("w0", "w1") if one.seen else ("w1", "w0")
        status, found = await explained(running, LONG)
        assert status == 200
        first, second = found["workers"]
        assert (first["worker"], first["rank"], second["worker"]) == (holder, 1, other)
        assert first["matched_tokens"] > 0 == second["matched_tokens"]
        assert first["cost_ms"] < second["cost_ms"]
        assert "tokens held" in first["reason"]
        terms = first["terms"]
        assert sum(value for name, value in terms.items() if name.endswith("_ms")) * terms["stay"] == (
            pytest.approx(first["cost_ms"])
        )
        assert len(one.seen) + len(two.seen) == 1
        assert (found["policy"], found["model"], found["tenant"], found["waiting"]) == (
            "cost",
            "m",
            "acme",
            0,
        )
        _, stranger = await explained(running, LONG, tenant="globex")
        assert all(worker["matched_tokens"] == 0 for worker in stranger["workers"])
        assert running.idle


async def test_without_tenants_a_route_is_explained_without_a_tenant(operated):
    async with ScriptedWorker() as worker, operated(worker, tenants={}) as running:
        status, found = await explained(running, "hello", tenant="default")
        assert (status, found["tenant"], found["workers"][0]["rank"]) == (200, "default", 1)
        assert (await explained(running, "hello", tenant="acme"))[0] == 404


async def test_a_route_leads_to_the_fallback_of_a_model_that_no_worker_serves(operated):
    models = json.dumps([{"name": "m", "fallbacks": ["none", "next"]}, {"name": "next"}])
    async with ScriptedWorker(["next"]) as worker, operated(worker, models=models) as running:
        _, found = await explained(running, "hello")
        assert (found["asked"], found["model"], found["workers"][0]["rank"]) == ("m", "next", 1)


async def test_no_route_is_explained_that_a_tenant_may_not_take(operated):
    tenants = {"acme": {"models": {"deny": ["m"]}}}
    async with ScriptedWorker() as worker, operated(worker, tenants=tenants) as running:
        status, problem = await explained(running, "hello")
        async with running.chat() as refused:
            assert (status, refused.status) == (403, 403)
            assert problem["detail"] == (await refused.json())["error"]["message"]


async def test_a_policy_that_cannot_rank_is_named_to_operators(operated, monkeypatch):
    def broken(*_):
        raise PolicyContractBroken("policy cost failed: KeyError: 3 (cost.py, line 7)")

    monkeypatch.setattr(CostPolicy, "rank", broken)
    async with ScriptedWorker() as worker, operated(worker) as running:
        status, problem = await explained(running, "hello")
        async with running.chat() as refused:
            assert (status, refused.status) == (500, 500)
            assert "cost.py" not in await refused.text()
    assert problem["detail"] == "The policy cost failed: KeyError: 3 (cost.py, line 7)."


async def test_workers_that_take_no_part_are_shown_with_the_reason(operated):
    async with ScriptedWorker() as one, ScriptedWorker(["other"]) as two, ScriptedWorker() as three:
        async with operated(one, two, three) as running:
            await call(running, "POST", "/workers/w2/drain")
            fleet = running.here.gateway.fleet
            await running.until(lambda: fleet["w2"].health.state.value == "draining", 60)
            _, found = await explained(running, "hello")
            assert [(w["worker"], w["rank"]) for w in found["workers"]] == [
                ("w0", 1),
                ("w1", None),
                ("w2", None),
            ]
            assert [w["reason"] for w in found["workers"][1:]] == ["does not serve m", "draining"]


async def test_no_client_gets_the_reason_for_the_choice_of_a_worker(operated):
    async with ScriptedWorker() as one, operated(one) as running:
        async with running.chat(LONG, stream=True) as response:
            said = json.dumps(dict(response.headers)) + await response.text()
        assert "tokens held" not in said
        async with running.http.post(f"{running.url}/admin/v1/route", json={}) as response:
            assert response.status == 404


async def test_the_command_prints_the_best_worker_or_all_with_their_terms(operated, tmp_path):
    async with ScriptedWorker() as one, ScriptedWorker() as two, operated(one, two) as running:
        prompt = tmp_path / "prompt.txt"
        prompt.write_text(LONG)

        async def route(*options):
            words = ("route", prompt, "--url", running.admin, "--token", TOKEN, "--tenant", "acme")
            return await asyncio.to_thread(run_command, *words, *options)

        code, out, err = await route("--model", "m")
        assert (code, err) == (0, "")
        assert len(out.splitlines()) == 3
        code, out, _ = await route("--model", "m", "--explain")
        assert ("w0" in out, "w1" in out) == (True, True)
        assert re.search(r"^w0: wait [\d.]+ ms, own [\d.]+ ms, .*, stay 1\.00$", out, re.M)
        code, out, _ = await route("--model", "m", "--json")
        assert len(json.loads(out)["workers"]) == 2
        assert (await route())[0] == 2
        code, _, err = await route("--model", "none")
        assert (code, "Traceback" in err) == (1, False)
        assert one.seen == two.seen == []
