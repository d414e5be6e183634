"""Workers of a Kubernetes Service, from an API server that streams its changes and fails in many ways."""

import asyncio
import logging

import pytest

from gateway.discovery.discovery import Discovery
from gateway.discovery.kubernetes import KubernetesSource
from gateway.discovery.source import SourceUnavailable
from gateway.discovery.worker_kinds import WorkerKinds
from gateway.discovery.worker_registry import RegistryChanges
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.kubernetes import api as kubernetes_api
from gateway.kubernetes import watched_objects
from gateway.settings.workers import DiscoverySettings as Settings
from gateway.wiring.fleet import target_of
from radix_cache.match import WorkerId
from tests.fakes.kubernetes_api import KubernetesApi, endpoint


@pytest.fixture
async def api(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_objects, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(watched_objects, "PAUSE_SECONDS_MAX", 0.05)
    async with KubernetesApi(tmp_path) as server:
        yield server


def source_of(api, **more):
    settings = {"every_seconds": 0.02, **more}
    return KubernetesSource(Settings(kind="kubernetes", name="vllm", **settings), api.url, api.account)


async def names(source):
    return [worker.id for worker in await source.find()]


@pytest.fixture
async def follow():
    """Return a function that follows a source in the background, and gives the list of all its results."""
    tasks = []

    def begin(source):
        results = []

        async def run():
            while True:
                try:
                    results.append(await names(source))
                except SourceUnavailable as err:
                    results.append(str(err))
                await source.wait()

        tasks.append(asyncio.ensure_future(run()))
        return results

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def true(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


async def test_ready_endpoints_of_a_service_are_workers_by_the_names_of_their_pods(api):
    ports = [{"name": "metrics", "port": 9}, {"name": "http", "port": 8000}]
    api.page = 1
    api.put("a", [endpoint("10.0.0.2", "vllm-1", ready=True), endpoint("10.0.0.3", "vllm-2")], ports)
    api.put("b", [endpoint("10.0.0.4", "vllm-3", ready=False)], ports)
    api.put("c", [endpoint("fd00::5", "vllm-4", ready=True, terminating=True)], ports)
    api.put("d", [endpoint("fd00::6", "vllm-5", ready=None)], ports)
    api.put("e", [], [])
    found = await source_of(api, port_name="http").find()
    assert {worker.id: worker.url for worker in found} == {
        "vllm-1": "http://10.0.0.2:8000",
        "vllm-2": "http://10.0.0.3:8000",
        "vllm-5": "http://[fd00::6]:8000",
    }
    assert api.namespaces == {"inference"}
    assert api.lists[0]["labelSelector"] == "kubernetes.io/service-name=vllm"
    assert len(api.lists) == 5


async def test_null_in_place_of_endpoints_ports_and_conditions_is_read(api):
    nothing = {"addresses": None, "conditions": None, "targetRef": None}
    api.put("a", [nothing, {"addresses": ["10.0.0.1"], "conditions": None}], [{"name": None, "port": 8000}])
    assert [worker.url for worker in await source_of(api).find()] == ["http://10.0.0.1:8000"]


async def test_changes_come_by_the_watch_and_the_list_is_read_once(api, follow):
    api.put("a", [endpoint("10.0.0.1", "one")])
    source = source_of(api)
    results = follow(source)
    await true(lambda: api.open_watches)
    api.put("b", [endpoint("10.0.0.2", "two")])
    await true(lambda: results[-1] == ["one", "two"])
    api.put("a", [endpoint("10.0.0.1", "one", ready=False)])
    await true(lambda: results[-1] == ["two"])
    api.delete("b")
    await true(lambda: results[-1] == [])
    assert (len(api.lists), len(api.watches)) == (1, 1)


async def test_a_watch_that_ends_or_breaks_off_goes_on_from_the_last_version(api, follow):
    api.put("a", [endpoint("10.0.0.1", "one")])
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    for count, stop in enumerate((api.end_watches, api.cut_watches, api.end_watches), start=2):
        stop()
        api.put(f"b{count}", [endpoint(f"10.0.0.{count}", f"pod-{count}")])
        await true(lambda count=count: f"pod-{count}" in results[-1])
        await true(lambda: api.open_watches)
    assert len(api.lists) == 1
    assert all(isinstance(result, list) for result in results)


async def test_a_bookmark_moves_the_version_on_so_that_a_compaction_costs_no_list(api, follow):
    api.put("a", [endpoint("10.0.0.1", "one")])
    source = source_of(api)
    results = follow(source)
    await true(lambda: api.open_watches)
    api.touch_others(100)
    api.bookmark()
    await true(lambda: source._slices._version == "102")
    api.compact()
    api.cut_watches()
    await true(lambda: len(api.watches) > 1 and api.open_watches)
    assert api.watches[-1]["resourceVersion"] == "102"
    api.put("b", [endpoint("10.0.0.2", "two")])
    await true(lambda: results[-1] == ["one", "two"])
    assert len(api.lists) == 1


async def test_without_its_version_the_list_is_read_again_and_what_went_meanwhile_is_gone(api, follow):
    api.put("a", [endpoint("10.0.0.1", "one")])
    api.put("b", [endpoint("10.0.0.2", "two")])
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    await api.stop()
    api.delete("a")
    api.put("c", [endpoint("10.0.0.3", "three")])
    api.compact()
    await api.start()
    await true(lambda: results[-1] == ["three", "two"] or results[-1] == ["two", "three"])
    assert len(api.lists) == 2
    await true(lambda: api.open_watches)


async def test_a_410_in_place_of_the_watch_lists_again(api, follow):
    api.put("a", [endpoint("10.0.0.1", "one")])
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    api.answers = [410]
    api.cut_watches()
    await true(lambda: len(api.lists) == 2 and api.open_watches)
    assert results[-1] == ["one"]


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"{}\n",
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"9"},"endpoints":5}}\n',
        b'{"type":"RENAMED","object":{"metadata":{"name":"x","resourceVersion":"9"}}}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"type":"ERROR","object":{"code":500,"message":"etcdserver: leader changed"}}\n',
    ],
    ids=["no JSON", "no type", "no name", "no endpoints", "no known type", "no UTF-8", "brackets", "error"],
)
async def test_a_line_that_cannot_be_read_lists_again_and_removes_no_worker(api, follow, line):
    api.put("a", [endpoint("10.0.0.1", "one")])
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    api.send_raw(line)
    await true(lambda: len(api.lists) == 2 and api.open_watches)
    api.put("b", [endpoint("10.0.0.2", "two")])
    await true(lambda: results[-1] == ["one", "two"])
    assert [] not in results


async def test_an_endless_line_is_not_read_on(api, follow, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "LINE_BYTES_MAX", 100_000)
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    for _ in range(30):
        api.send_raw(b"x" * 10_000)
    await true(lambda: len(api.lists) == 2 and api.open_watches)
    assert all(isinstance(result, list) for result in results)


async def test_a_page_that_is_too_large_is_refused(api, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "PAGE_BYTES_MAX", 100)
    api.put("a", [endpoint("10.0.0.1", "one"), endpoint("10.0.0.2", "two")])
    with pytest.raises(SourceUnavailable, match="larger than 100 bytes"):
        await source_of(api).find()


async def test_more_slices_than_a_service_has_are_refused(api, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "OBJECTS_MAX", 200)
    api.page = 1
    for number in range(3):
        api.put(f"s{number}", [])
    with pytest.raises(SourceUnavailable, match="more than 200 EndpointSlice objects"):
        await source_of(api).find()


async def test_a_line_in_pieces_is_one_change(api, follow):
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    text = (
        b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"},'
        b'"ports":[{"port":1}],"endpoints":[{"addresses":["10.0.0.1"],"targetRef":{"name":"one"}}]}}\n\n'
    )
    for at in range(0, len(text), 20):
        api.send_raw(text[at : at + 20])
        await asyncio.sleep(0.001)
    await true(lambda: results[-1] == ["one"])
    assert len(api.lists) == 1


async def test_half_a_line_of_a_watch_that_broke_off_is_no_change(api, follow):
    api.put("a", [endpoint("10.0.0.1", "one")])
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    api.send_raw(b'{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"99"}}}')
    await asyncio.sleep(0.05)
    api.cut_watches()
    await true(lambda: len(api.watches) == 2 and api.open_watches)
    assert api.watches[-1]["resourceVersion"] == "2"
    assert results[-1] == ["one"]


async def test_a_server_that_is_away_is_tried_more_and_more_rarely_and_keeps_the_last_workers(
    api, follow, monkeypatch
):
    monkeypatch.setattr(watched_objects, "PAUSE_SECONDS_MAX", 0.5)
    api.put("a", [endpoint("10.0.0.1", "one")])
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    api.answers = [503] * 7
    api.cut_watches()
    await true(lambda: not api.answers)
    assert "503" in results[-1]
    await true(lambda: results[-1] == ["one"])
    assert len(api.lists) == 1
    # Each watch that was refused is followed by a longer pause: 10, 20, 40 ... ms, of which half at least.
    assert len(api.watches) <= 10


async def test_a_watch_that_is_ended_at_once_is_not_opened_all_the_time(api, follow, monkeypatch):
    monkeypatch.setattr(watched_objects, "PAUSE_SECONDS_MAX", 30.0)
    follow(source_of(api))
    async with asyncio.timeout(30):
        for pause in (0.01, 0.01, 0.01, 0.01, 1.0):
            await true(lambda: api.open_watches)
            monkeypatch.setattr(watched_objects, "PAUSE_SECONDS", pause)
            api.end_watches()
            await true(lambda: not api.open_watches)
    before = len(api.watches)
    await asyncio.sleep(0.07)  # The next pause is 16 seconds, of which half at least.
    assert len(api.watches) == before


async def test_a_watch_that_is_not_ended_in_time_is_ended_here_and_goes_on(api, follow, monkeypatch):
    monkeypatch.setattr(kubernetes_api, "WATCH_SECONDS", (0, 0))
    monkeypatch.setattr(kubernetes_api, "WATCH_GRACE_SECONDS", 0.2)
    api.put("a", [endpoint("10.0.0.1", "one")])
    results = follow(source_of(api))
    await true(lambda: len(api.watches) > 2)
    api.put("b", [endpoint("10.0.0.2", "two")])
    await true(lambda: results[-1] == ["one", "two"])
    assert len(api.lists) == 1


async def test_a_renewed_token_is_used_for_the_next_answer(api, follow):
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    api.tokens = {"renewed"}
    api.give_token("renewed")
    api.put("a", [endpoint("10.0.0.1", "one")])
    await true(lambda: results[-1] == ["one"])  # The open watch goes on.
    api.cut_watches()
    await true(lambda: len(api.watches) == 2 and api.open_watches)
    assert all(isinstance(result, list) for result in results)


async def test_a_token_that_is_out_of_date_makes_the_source_unavailable_until_it_is_renewed(api, follow):
    api.put("a", [endpoint("10.0.0.1", "one")])
    results = follow(source_of(api))
    await true(lambda: api.open_watches)
    api.tokens = {"renewed"}
    api.cut_watches()
    await true(lambda: "401: the service account may not list endpointslices" in str(results[-1]))
    api.give_token("renewed")
    await true(lambda: results[-1] == ["one"] and api.open_watches)


async def test_an_account_that_may_only_list_is_served_by_lists_and_logged_once(api, follow, caplog):
    api.may_watch = False
    with caplog.at_level(logging.WARNING):
        results = follow(source_of(api))
        await true(lambda: len(api.lists) > 3)
        api.put("a", [endpoint("10.0.0.1", "one")])
        await true(lambda: results[-1] == ["one"])
    assert sum("needs `watch` on endpointslices" in record.getMessage() for record in caplog.records) == 1
    api.may_watch = True
    await true(lambda: api.open_watches)


async def test_an_api_server_that_refuses_is_a_source_that_is_unavailable(api):
    assert await source_of(api, namespace="other").find() == []
    assert api.namespaces == {"other"}
    api.give_token("stolen")
    with pytest.raises(SourceUnavailable, match="401: the service account may not list endpointslices"):
        await source_of(api).find()


async def test_a_redirect_is_not_followed_with_the_token(api):
    api.answers = [302]
    with pytest.raises(SourceUnavailable, match="answers 302"):
        await source_of(api).find()


async def test_outside_of_kubernetes_there_is_no_server_to_call(tmp_path):
    source = KubernetesSource(Settings(kind="kubernetes", name="vllm"), account=tmp_path)
    with pytest.raises(SourceUnavailable, match="the service account cannot be read"):
        await source.find()


async def test_the_end_of_the_gateway_closes_the_watch(api):
    source = source_of(api)
    await source.find()
    waiting = asyncio.ensure_future(source.wait())
    await true(lambda: api.open_watches)
    waiting.cancel()
    await asyncio.wait([waiting])
    await true(lambda: not api.open_watches)


async def test_pods_of_a_service_join_the_fleet_and_leave_it_as_they_come_and_go(api):
    class Adapter:
        def close(self):
            pass

    def made(one):
        return Worker(
            id=WorkerId(one.id), kind=one.kind, adapter=Adapter(), models=frozenset("m"), models_fixed=True
        )

    class NoRegistry:
        changes = RegistryChanges()

        async def draining(self):
            return frozenset()

    fleet = Fleet([])
    source = source_of(api)
    discovery = Discovery(fleet, [], [source], NoRegistry(), made, WorkerKinds(target_of), drain_seconds=60)
    api.put("a", [endpoint("10.0.0.1", "one")])
    await discovery.query_sources()
    assert [worker.id for worker in fleet] == ["one"]
    running = asyncio.ensure_future(discovery.run())
    try:
        await true(lambda: api.open_watches)
        api.put("a", [endpoint("10.0.0.1", "one"), endpoint("10.0.0.2", "two")])
        await true(lambda: sorted(worker.id for worker in fleet) == ["one", "two"])
        await api.stop()
        await true(lambda: discovery.unavailable_sources)
        assert sorted(worker.id for worker in fleet) == ["one", "two"]
        api.delete("a")
        await api.start()
        await true(lambda: not list(fleet))
        assert discovery.unavailable_sources == {}
    finally:
        running.cancel()
        await asyncio.wait([running])


# ---- Pods by their labels, and those of an InferencePool


def found_by(api, **what):
    return KubernetesSource(Settings(kind="kubernetes", every_seconds=0.02, **what), api.url, api.account)


async def urls(source):
    return {worker.id: worker.url for worker in await source.find()}


async def test_ready_pods_with_the_labels_are_workers(api, follow):
    http = [{"name": "metrics", "containerPort": 9}, {"name": "http", "containerPort": 30000}]
    api.put_pod("one", "10.0.0.1", app="vllm", ports=http)
    api.put_pod("two", "fd00::2", app="vllm", ports=http)
    api.put_pod("loading", "10.0.0.3", app="vllm", ports=http, ready=False)
    api.put_pod("ending", "10.0.0.4", app="vllm", ports=http, ending=True)
    api.put_pod("other", "10.0.0.5", app="web", ports=http)
    api.put_pod("silent", "10.0.0.6", app="vllm")
    assert await urls(found_by(api, selector="app=vllm", port_name="http")) == {
        "one": "http://10.0.0.1:30000",
        "two": "http://[fd00::2]:30000",
    }
    assert (await urls(found_by(api, selector="app=vllm", port=7)))["silent"] == "http://10.0.0.6:7"
    assert (await urls(found_by(api, selector="app=web")))["other"] == "http://10.0.0.5:8000"

    results = follow(found_by(api, selector="app=vllm", port_name="http"))
    await true(lambda: api.open_watches)
    api.put_pod("loading", "10.0.0.3", app="vllm", ports=http)
    await true(lambda: results[-1] == ["loading", "one", "two"])
    api.put_pod("one", "10.0.0.1", app="vllm", ports=http, ending=True)
    await true(lambda: results[-1] == ["loading", "two"])
    api.put_pod("two", "fd00::2", app="web", ports=http)
    await true(lambda: results[-1] == ["loading"])


def pool(*ports, **labels):
    numbers = [{"number": port} for port in ports]
    return {"spec": {"selector": {"matchLabels": labels}, "targetPorts": numbers}}


async def test_an_inference_pool_names_which_pods_serve_at_which_ports(api, follow):
    api.put_pod("one", "10.0.0.1", app="vllm")
    api.put_pod("two", "10.0.0.2", app="sglang")
    api.put_object("inferencepools", "chat", pool(8000, 8001, app="vllm"))
    api.put_object("inferencepools", "other", pool(1, app="web"))
    source = found_by(api, inference_pool="chat", worker_kind="auto")
    assert await urls(source) == {"one": "http://10.0.0.1:8000", "one-8001": "http://10.0.0.1:8001"}

    results = follow(source)
    await true(lambda: api.open_watches == 2)
    api.put_pod("three", "10.0.0.3", app="vllm")
    await true(lambda: results[-1] == ["one", "one-8001", "three", "three-8001"])
    api.put_object("inferencepools", "chat", pool(30000, app="sglang"))
    await true(lambda: results[-1] == ["two"])
    await true(lambda: api.open_watches == 2)
    api.put_pod("four", "10.0.0.4", app="sglang")
    await true(lambda: results[-1] == ["four", "two"])
    # One list and one watch of the pool, and of the pods of each selector.
    assert (len(api.lists), len(api.watches)) == (3, 3)


async def test_an_inference_pool_that_is_not_there_keeps_the_last_workers(api, follow):
    results = follow(found_by(api, inference_pool="chat"))
    await true(lambda: results and results[-1] == "there is no such InferencePool")
    api.put_pod("one", "10.0.0.1", app="vllm")
    api.put_object("inferencepools", "chat", pool(8000, app="vllm"))
    await true(lambda: results[-1] == ["one"])
    api.put_object("inferencepools", "chat", pool(8000))
    await true(lambda: "would be every pod" in str(results[-1]))
    api.delete("chat", "inferencepools")
    await true(lambda: results[-1] == "there is no such InferencePool")


async def test_the_end_of_the_gateway_closes_the_watches_of_pool_and_pods(api, follow):
    api.put_object("inferencepools", "chat", pool(8000, app="vllm"))
    source = found_by(api, inference_pool="chat")
    await source.find()
    task = asyncio.ensure_future(source.wait())
    await true(lambda: api.open_watches == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await true(lambda: not api.open_watches)
