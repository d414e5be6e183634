"""Load feeds over real ZMQ, and probes while a feed is silent."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

from gateway.fleet import load_feeds as feeds_module
from gateway.fleet import loads as loads_module
from gateway.fleet.reported_prefill_rate import TOKENS_ENOUGH
from tests.fakes.load_publisher import LoadPublisher, stat
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.ports import free_ports

LONG = "It was a long prompt, and there was more of it than of any other. " * 40


class Rank:
    """Says the same every few milliseconds, as a busy engine does."""

    def __init__(self, publisher, **told):
        self.publisher = publisher
        self.told = told

    async def run(self):
        while True:
            self.publisher.publish(stat(**self.told))
            await asyncio.sleep(0.02)


@asynccontextmanager
async def publishing(*ranks):
    """A scripted worker with a load feed of so many ranks, on ports in a row."""
    async with AsyncExitStack() as stack:
        base = free_ports(len(ranks))[0]
        said = [
            Rank(stack.enter_context(LoadPublisher(base + number)), rank=number, **told)
            for number, told in enumerate(ranks)
        ]
        worker = ScriptedWorker()
        worker.ranks = len(ranks)
        worker.info = {
            "kv_events": {"load_endpoint_port_base": base, "load_topic": "load", "dp_size": len(ranks)}
        }
        await stack.enter_async_context(worker)
        tasks = [asyncio.create_task(one.run()) for one in said]
        try:
            yield worker, said, tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def one(running):
    return running.here.gateway.fleet["w0"]


async def test_what_a_worker_publishes_is_received_and_shown(gateway, tmp_path):
    operated = {
        "database.url": f"sqlite:///{tmp_path}/tenants.db",
        "admin.token": "7be41c0d9a5f4e3288c6d1b0f7a9e253",
    }
    async with publishing({"running": 3, "waiting": 2, "kv": 900, "waiting_uncached": 400}) as (
        worker,
        _,
        _,
    ):
        async with gateway(worker, **operated) as running:
            await running.until(lambda: one(running).load.external.streams == 5)
            external = one(running).load.external
            assert (external.tokens_queued, external.kv_tokens) == (400, 900)
            snapshot = one(running).snapshot(0.0)
            assert (snapshot.streams, snapshot.tokens_queued) == (5, 400)
            async with running.http.get(f"{running.admin}/metrics") as answer:
                assert 'radixgate_worker_load_feed_up{worker="w0"} 1.0' in await answer.text()
            operator = {"Authorization": "Bearer 7be41c0d9a5f4e3288c6d1b0f7a9e253"}
            async with running.http.get(f"{running.admin}/admin/v1/workers", headers=operator) as answer:
                assert (await answer.json())["data"][0]["load_feed_up"] is True


async def test_a_worker_whose_feed_stops_is_probed(gateway, monkeypatch):
    monkeypatch.setattr(loads_module, "SILENT_SECONDS", 0.5)
    async with publishing({"running": 5}) as (worker, _, tasks):
        async with gateway(worker) as running:
            await running.until(lambda: one(running).load.external.streams == 5)
            tasks[0].cancel()
            await running.until(lambda: not one(running).load.has_load_feed)
            # Nothing is heard, and this worker has no /v1/loads.
            await running.until(lambda: one(running).load.external.streams == 0)


async def test_a_request_goes_past_the_rank_that_others_keep_busy(gateway):
    async with publishing({}, {}) as (worker, ranks, _):
        async with gateway(worker) as running:
            await running.until(lambda: one(running).load.has_load_feed)
            async with running.chat(LONG) as answer:
                assert answer.status == 200
            home = worker.seen[0].body["routed_dp_rank"]
            ranks[home].told = {"running": 40, "waiting": 200, "waiting_uncached": 500_000}
            await running.until(lambda: one(running).load.external.streams == 240)
            async with running.chat("x" + LONG) as answer:
                assert answer.status == 200
            async with running.chat("y" + LONG) as answer:
                assert answer.status == 200
    assert [seen.body["routed_dp_rank"] for seen in worker.seen[1:]] == [1 - home, 1 - home]


async def test_a_worker_begins_with_the_speed_that_its_engine_reports(gateway):
    told = {"prefilled": 4 * TOKENS_ENOUGH, "prefill_us": 4 * TOKENS_ENOUGH * 25}
    async with publishing(told) as (worker, _, _):
        async with gateway(worker) as running:
            await running.until(lambda: one(running).load.has_load_feed)
            assert one(running).speed.ms_per_token == 0.025


async def test_the_settings_name_where_a_worker_publishes_or_that_no_gateway_subscribes(gateway):
    async with publishing({"running": 2}) as (worker, said, _):
        worker.info = {}
        at = {"endpoint": f"tcp://*:{said[0].publisher.port}"}
        entry = {"id": "w0", "kind": "sglang", "url": worker.url}
        async with gateway(workers=json.dumps([{**entry, "load_feed": at}])) as running:
            await running.until(lambda: one(running).load.has_load_feed)
        worker.info = {"kv_events": {"load_endpoint_port_base": said[0].publisher.port, "dp_size": 1}}
        async with gateway(workers=json.dumps([{**entry, "load_feed": "off"}])) as running:
            await running.until(lambda: one(running).reported)
            assert one(running).report.loads
            await running.until(lambda: one(running).health.state.value == "up")
            assert not one(running).load.has_load_feed


async def test_workers_beyond_the_bound_are_probed_and_that_is_logged_once(gateway, monkeypatch, caplog):
    monkeypatch.setattr(feeds_module, "SUBSCRIBERS_MAX", 1)
    async with publishing({"running": 2}) as (worker, _, _), publishing({}, {}) as (other, _, _):
        async with gateway(worker, other) as running:
            await running.until(lambda: one(running).load.has_load_feed)
            beyond = running.here.gateway.fleet["w1"]
            await running.until(lambda: beyond.reported)
            for _ in range(3):
                await running.here.gateway.fleet.probe(beyond)
            assert not beyond.load.has_load_feed
    assert [line for line in caplog.messages if "load feeds are listened to" in line] == [
        "the load of worker w1 is known from its probes alone: 1 load feeds are listened to already"
    ]


async def test_a_worker_that_leaves_is_not_listened_to_any_more(gateway, tmp_path):
    async with publishing({"running": 2}) as (worker, _, _):
        listed = tmp_path / "workers.json"
        listed.write_text(json.dumps([{"id": "w0", "kind": "sglang", "url": worker.url}]))
        found = json.dumps([{"kind": "file", "name": str(listed), "every_seconds": 0.1}])
        async with gateway(discovery=found) as running:
            await running.until(
                lambda: "w0" in running.here.gateway.fleet and one(running).load.has_load_feed
            )
            leaving = one(running)
            listed.write_text("[]")
            await running.until(lambda: "w0" not in running.here.gateway.fleet)
            read_at = leaving.load.read_at
            await asyncio.sleep(0.3)
            assert leaving.load.read_at == read_at
