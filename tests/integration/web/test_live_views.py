"""Views of the operators' listener as streams of server-sent events, as the console watches them."""

import asyncio
import json

import aiohttp
import pytest

from gateway.web import live_views
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.files.test_files_api import with_database

EVENTS = {"Accept": "text/event-stream"}
TOKEN = "f3b1c9d07a5e4c2b8d6f0a1e3c5b7d9f"


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch):
    monkeypatch.setattr(live_views, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr("gateway.web.admin_app.REFRESH_SECONDS", 0.02)


async def events(response):
    """Yield the data of each event of a stream."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def test_a_view_is_sent_now_and_after_each_change(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.http.get(f"{running.admin}/admin/v1/overview", headers=EVENTS) as stream:
            assert stream.status == 200
            assert stream.content_type == "text/event-stream"
            watched = events(stream)
            assert (await anext(watched))["all"]["total"]["requests"] == 0
            async with running.chat() as answer:
                await answer.read()
            async for state in watched:
                if state["all"]["total"]["requests"] == 1:
                    break


async def test_what_no_stream_watches_is_not_computed(gateway, monkeypatch):
    computed = []
    body = live_views.LiveView.body

    async def counted(self):
        computed.append(self)
        return await body(self)

    monkeypatch.setattr(live_views.LiveView, "body", counted)
    async with ScriptedWorker() as worker, gateway(worker) as running:
        await asyncio.sleep(0.2)
        assert computed == []
        async with running.http.get(f"{running.admin}/admin/v1/queue", headers=EVENTS) as stream:
            await anext(events(stream))
        before = None
        async with asyncio.timeout(60):
            while len(computed) != before:
                before = len(computed)
                await asyncio.sleep(0.2)


async def test_streams_of_one_view_share_its_answer(gateway, monkeypatch):
    asked = []
    async with ScriptedWorker() as worker, gateway(worker) as running:
        report = running.here.gateway.queues.report

        async def counted():
            asked.append(1)
            return await report()

        monkeypatch.setattr(type(running.here.gateway.queues), "report", lambda self: counted())
        monkeypatch.setattr(live_views.LiveView, "__init__", _slowly(live_views.LiveView.__init__))
        url = f"{running.admin}/admin/v1/queue"
        async with (
            running.http.get(url, headers=EVENTS) as one,
            running.http.get(url, headers=EVENTS) as two,
        ):
            await asyncio.gather(anext(events(one)), anext(events(two)))
        assert len(asked) == 1


def _slowly(create):
    """Views that are computed once in an hour."""
    return lambda self, compute, refresh_seconds: create(self, compute, 3600.0)


async def test_there_are_only_so_many_streams(gateway, monkeypatch):
    monkeypatch.setattr(live_views.LiveViews.__init__, "__kwdefaults__", {"streams_max": 1})
    async with ScriptedWorker() as worker, gateway(worker) as running:
        url = f"{running.admin}/admin/v1/queue"
        async with running.http.get(url, headers=EVENTS) as one:
            await anext(events(one))
            async with running.http.get(url, headers=EVENTS) as two:
                assert two.status == 503
                assert two.headers["retry-after"] == "10"
                assert "Too many pages" in (await two.json(content_type=None))["detail"]
            async with running.http.get(url) as answer:
                assert answer.status == 200
        async with asyncio.timeout(60):
            while True:
                async with running.http.get(url, headers=EVENTS) as again:
                    if again.status == 200:
                        break


async def test_a_stream_needs_the_role_and_a_right_question(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"admin.token": TOKEN}) as running:
        url, token = f"{running.admin}/admin/v1/queue", {"Authorization": f"Bearer {TOKEN}"}
        async with running.http.get(url, headers=EVENTS) as answer:
            assert answer.status == 401
        async with running.http.get(f"{url}?nonsense=1", headers={**EVENTS, **token}) as answer:
            assert answer.status == 400
            assert "nonsense" in (await answer.json(content_type=None))["detail"]


async def test_a_gateway_that_stops_ends_its_streams(gateway):
    async with aiohttp.ClientSession() as client, ScriptedWorker() as worker:
        async with gateway(worker) as running:
            stream = await client.get(f"{running.admin}/admin/v1/queue", headers=EVENTS)
            await anext(events(stream))
        await stream.content.read()
        assert stream.content.at_eof()


@pytest.mark.parametrize("settings", [{}, with_database()], ids=["without a database", "with a database"])
@pytest.mark.parametrize(
    "view", ["overview", "history", "queue", "index", "requests", "policies", "settings", "workers"]
)
async def test_every_view_needs_no_database(gateway, settings, view):
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        async with running.http.get(f"{running.admin}/admin/v1/{view}") as answer:
            assert answer.status == 200, await answer.text()
            assert await answer.json()
