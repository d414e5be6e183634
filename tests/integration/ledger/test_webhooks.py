"""Webhooks: signed, tried again, delivered once; and their events. SQLite and PostgreSQL."""

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.database.database import Database
from gateway.database.usage_store import HOUR_MS, UsageStore
from gateway.database.webhook_outbox import Outbox
from gateway.ledger.usage_maintenance import UsageMaintenance
from gateway.ledger.webhooks import Webhooks, signed
from gateway.settings.types import Secret
from gateway.settings.usage import UsageSettings, WebhookSettings, webhook_secret
from tests.fakes.scripted_worker import ScriptedWorker

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver:
    """A webhook receiver that answers with `statuses` one after the other, then with 204."""

    def __init__(self):
        self.told = []
        self.statuses = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.url = ""

    async def __aenter__(self):
        app = web.Application()
        app.router.add_route("*", "/{anything:.*}", self.hear)
        self.runner = web.AppRunner(app, access_log=None)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/hook"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    async def hear(self, http):
        body = await http.read()
        self.told.append((http.headers.copy(), body))
        await self.may_answer.wait()
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"location": f"{self.url}/elsewhere"})

    def right(self, headers, body):
        """Is it signed as the specification says?"""
        text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        wanted = base64.b64encode(hmac.digest(KEY, text, hashlib.sha256)).decode()
        return headers["webhook-signature"] == f"v1,{wanted}"


@pytest.fixture
async def receiver():
    async with Receiver() as made:
        yield made


@pytest.fixture
async def database(tables_url):
    opened = Database(tables_url, Path())
    yield opened
    await opened.close()


class Scene:
    """An outbox, a webhook, and a clock."""

    def __init__(self, database, url, **more):
        self.now = 1_000.0
        self.outbox = Outbox(database)
        hooks = [WebhookSettings(id="books", url=url, secret=Secret(SECRET), **more)]
        self.webhooks = Webhooks(hooks, self.outbox, wall=lambda: self.now, again=(10.0, 100.0))

    async def put(self, *ids, hook="books"):
        row = {"hook": hook, "type": "budget.alert", "at_ms": 1, "data": {"a": 1}, "attempts": 0, "due_ms": 1}
        await self.outbox.put([{**row, "id": each} for each in ids])

    async def deliver(self):
        async with aiohttp.ClientSession() as http:
            return await self.webhooks.deliver(http)


def test_the_signature_is_the_specifications():
    # The example of the specification's reference implementations.
    secret = webhook_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_AAAA", "whsec_?", SECRET.removeprefix("whsec_"), SECRET * 3]
)
def test_what_is_no_secret_is_none(secret):
    assert webhook_secret(secret) is None


async def test_an_event_is_delivered_signed_and_once(database, receiver):
    scene = Scene(database, receiver.url)
    await scene.put("e1")
    await scene.put("e1")
    assert await scene.deliver()
    assert not await scene.deliver()
    await scene.put("e1")
    assert not await scene.deliver()
    ((headers, body),) = receiver.told
    assert receiver.right(headers, body)
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("e1", "1000")
    assert json.loads(body) == {"type": "budget.alert", "timestamp": "1970-01-01T00:00:00Z", "data": {"a": 1}}


async def test_an_event_that_is_not_taken_comes_again_later_and_later_and_is_given_up(database, receiver):
    scene = Scene(database, receiver.url)
    receiver.statuses = [500, 302, 503]
    await scene.put("e1")
    assert await scene.deliver()
    assert not await scene.deliver()
    scene.now += 12
    assert await scene.deliver()
    scene.now += 12
    assert not await scene.deliver()
    scene.now += 100
    assert await scene.deliver()
    scene.now += 10_000
    assert not await scene.deliver()
    assert {headers["webhook-id"] for headers, _ in receiver.told} == {"e1"}
    assert len(receiver.told) == 3
    assert (scene.webhooks.delivered, scene.webhooks.failed) == (0, 3)


async def test_a_receiver_that_answers_410_gets_no_more_events(database, receiver):
    scene = Scene(database, receiver.url)
    receiver.statuses = [410]
    await scene.put("e1")
    await scene.deliver()
    scene.now += 10_000
    assert not await scene.deliver()


async def test_an_address_without_a_server_counts_as_a_refusal(database):
    scene = Scene(database, "http://127.0.0.1:1/")
    await scene.put("e1")
    assert await scene.deliver()
    scene.now += 12
    assert await scene.deliver()


async def test_two_gateways_do_not_deliver_the_same_event_at_once(database, receiver):
    scene = Scene(database, receiver.url)
    await scene.put(*(f"e{n}" for n in range(6)))
    claim = {"now_ms": 2_000, "until_ms": 60_000, "limit": 4}
    first = await scene.outbox.claim(["books"], **claim)
    second = await scene.outbox.claim(["books"], **claim)
    assert (len(first), len(second)) == (4, 2)
    assert not {event["id"] for event in first} & {event["id"] for event in second}
    # The gateway that claimed them has died: they are due again.
    assert len(await scene.outbox.claim(["books"], now_ms=60_000, until_ms=90_000, limit=10)) == 6


async def test_an_event_whose_delivery_is_interrupted_is_due_at_once(database, receiver):
    """The gateway stops: another one need not wait for the end of its claim."""
    scene = Scene(database, receiver.url)
    await scene.put("e1")
    receiver.may_answer.clear()
    delivering = asyncio.create_task(scene.deliver())
    async with asyncio.timeout(60):
        while not receiver.told:
            await asyncio.sleep(0.005)
    delivering.cancel()
    await asyncio.gather(delivering, return_exceptions=True)
    receiver.may_answer.set()
    assert await scene.deliver()
    assert not await scene.deliver()
    assert len(receiver.told) == 2


async def test_an_event_for_an_unknown_webhook_waits(database, receiver):
    scene = Scene(database, receiver.url)
    await scene.put("e1", hook="elsewhere")
    assert not await scene.deliver()


async def test_a_tenants_hour_is_sent_when_it_is_over_and_again_only_when_it_has_grown(database, receiver):
    scene, store = Scene(database, receiver.url), UsageStore(database)
    row = {"organisation": "org", "tenant": "acme", "key_id": "k", "asked": "m", "model": "m", "worker": "w"}
    row |= {"surface": "chat", "prompt_tokens": 5, "cached_tokens": 1, "output_tokens": 2, "cost": 7}
    row |= {
        "attempt": 1,
        "ttft_ms": 1,
        "duration_ms": 1,
        "status": 200,
        "code": "ok",
        "user": None,
        "tags": None,
    }
    keeper = UsageMaintenance(UsageSettings(), store, ["books"], wall=lambda: scene.now)
    scene.now = 1.5 * HOUR_MS / 1000

    async def arrive(name, at):
        taken = [{**row, "request_id": name, "at_ms": at}]
        await store.write(taken, journal=name, position=0, end=1, now_ms=1)

    await arrive("r1", 10)
    await arrive("r2", HOUR_MS)
    await keeper.run_due()
    await keeper.run_due()
    await scene.deliver()
    await arrive("r3", 20)
    await keeper.run_due()
    await scene.deliver()
    assert not await scene.deliver()
    first, second = (json.loads(body) for _, body in receiver.told)
    assert first["type"] == "usage.hour"
    assert first["data"].items() >= {"tenant": "acme", "requests": 1, "cost": 7, "prompt_tokens": 5}.items()
    assert (first["data"]["since"], first["data"]["until"]) == (
        "1970-01-01T00:00:00Z",
        "1970-01-01T01:00:00Z",
    )
    assert second["data"]["requests"] == 2


async def test_a_running_gateway_sends_an_event_for_a_budget_that_is_used_up(gateway, receiver, tmp_path):
    hooks = [{"id": "books", "url": receiver.url, "secret": SECRET, "events": ["budget"]}]
    limits = [{"requests": 2, "per": "day", "mode": "soft"}]
    settings = {"database.url": f"sqlite:///{tmp_path}/t.db", "webhooks": json.dumps(hooks)}
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **settings) as running:
        for _ in range(3):
            async with running.chat() as response:
                assert response.status == 200
        await running.until(lambda: receiver.told, seconds=60)
    ((headers, body),) = receiver.told
    assert receiver.right(headers, body)
    said = json.loads(body)
    assert (said["type"], said["data"]["tenant"], said["data"]["amount"]) == ("budget.alert", "acme", 2)
