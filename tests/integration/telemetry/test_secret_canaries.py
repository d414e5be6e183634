"""Marked secrets in every kind of failure: no log, trace, metric or error contains one.

Database and Redis are away from the start: what drivers say of an address that they cannot reach is where passwords
like to stand.
"""

import asyncio
import json
from contextlib import suppress

import aiohttp
from aiohttp import web

from gateway.tenants.keys import new_key, pepper
from tests.fakes.identity_provider import AUDIENCE, IdentityProvider
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.processes import GatewayProcess

PEPPER = "canary-of-the-pepper-5d1f"
SECRETS = {
    "pepper": PEPPER,
    "worker key": "canary-of-the-worker-77aa",
    "admin token": "canary-of-the-admin-e09b7be41c0d9a5f",
    "database password": "canary-of-the-database-31c4",
    "redis password": "canary-of-the-redis-8f20",
}
PROMPT = "canary-of-the-prompt-c0ffee"
OWN_WORDS = "canary-of-the-client-90d3"
"""A model, a path, a header: errors may quote it to its client; logs, traces and metrics may not."""


class Collector:
    """Takes traces, as they come."""

    def __init__(self):
        self.bodies = []

    async def __aenter__(self):
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _take(self, http):
        self.bodies.append(await http.read())
        return web.Response(body=b"", content_type="application/x-protobuf")


class Caller:
    """Asks, and keeps what is answered. `errors`: bodies and headers of all refusals."""

    def __init__(self, http, url):
        self.http, self.url = http, url
        self.errors = []
        self.statuses = set()

    async def ask(self, body, headers, path="/v1/chat/completions", method="POST"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.request(method, self.url + path, data=data, headers=headers) as answer:
            with suppress(aiohttp.ClientError):
                text = await answer.text()
            self.statuses.add(answer.status)
            if answer.status >= 400 or "error" in text:
                self.errors.append(text + str(dict(answer.headers)))

    async def raw(self, data):
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(2):
                self.errors.append((await reader.read()).decode("latin-1"))
        writer.close()


def bodies():
    """Good ones, and such as are wrong in every way, each with the prompt in it."""
    message = {"role": "user", "content": PROMPT}
    good = {"model": "m", "messages": [message], "user": PROMPT}
    image = {"type": "image_url", "image_url": {"url": "https://h/?" + OWN_WORDS}}
    text = json.dumps(good).encode()
    return good, [
        *(text[:-2], text + b"}", text.replace(b"canary", b"canary\xff"), b"[" + text + b"]"),
        {**good, "messages": PROMPT},
        {**good, "messages": [PROMPT]},
        {**good, "messages": [{"role": 5, "content": PROMPT}]},
        {**good, "stream": PROMPT},
        {**good, "max_tokens": PROMPT},
        {**good, "n": 999},
        {**good, "model": OWN_WORDS},
        {**good, "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}, image]}]},
        {**good, "chat_template_kwargs": {"chat_template": PROMPT}},
        {**good, "x": json.loads("[" * 70 + "]" * 70)},
    ]


async def everything_goes_wrong(caller, worker, good_key, other_key, token):
    good, wrong = bodies()
    good_header = {"Authorization": f"Bearer {good_key}"}
    for stream in (False, True):
        await caller.ask({**good, "stream": stream}, good_header)
    await caller.ask({"model": "m", "prompt": PROMPT}, {"x-api-key": other_key}, "/v1/completions")
    await caller.ask(good, {"Authorization": f"Bearer {token}"})
    for body in wrong:
        await caller.ask(body, good_header)
    for script in (
        {"status": 500, "body": {"error": {"message": "inside"}}},
        {"status": 400, "body": {"error": {"message": f"{worker.url} says no"}}},
        {"status": 503},
        {"status": 401},
        {"break_after": 0},
        {"break_after": 1, "tokens": 5},
    ):
        worker.then(**{"status": 200, "body": None, "break_after": None, **script})
        await caller.ask({**good, "stream": "break_after" in script}, good_header)
    worker.then(status=200, body=None, break_after=None)
    for key in (good_key[:-1] + "x", good_key + OWN_WORDS, OWN_WORDS, token[:-4] + "AAAA", token + "."):
        await caller.ask(good, {"Authorization": f"Bearer {key}"})
        await caller.ask(good, {"x-api-key": key})
        await caller.ask(b"", {"Authorization": f"Bearer {key}"}, "/v1/models", "GET")
    await caller.ask(b"", good_header, f"/v1/models/{OWN_WORDS}", "GET")
    await caller.ask(b"", good_header, f"/{OWN_WORDS}?key={good_key}", "GET")
    await caller.ask(good, {**good_header, "Content-Encoding": OWN_WORDS})
    bearer = f"Authorization: Bearer {good_key}\r\n"
    for line in (
        f"POST /v1/{good_key} HTTP/9.9\r\n{bearer}\r\n{PROMPT}",
        f"GET / HTTP/1.1\r\nAuthorization {good_key}\r\n\r\n",
        f"{PROMPT} {good_key}\r\n\r\n",
        f"POST /v1/completions HTTP/1.1\r\nHost: h\r\n{bearer}Content-Length: 90\r\n\r\n{PROMPT}",
        f"GET /v1/models HTTP/1.1\r\nHost: h\r\nX: {good_key}\x00\r\n\r\n",
        f"GET /v1/models HTTP/1.1\r\nHost: h\r\nX: {good_key * 400}\r\n\r\n",
    ):
        await caller.raw(line.encode())


async def test_no_secret_shows_in_any_log_trace_metric_or_error(tmp_path):
    keys = [new_key(pepper(PEPPER.encode())) for _ in range(2)]
    async with (
        ScriptedWorker() as worker,
        Collector() as collector,
        IdentityProvider() as provider,
        aiohttp.ClientSession() as http,
    ):
        settings = {
            "deployment_secret": PEPPER,
            "redis": {"url": f"redis://:{SECRETS['redis password']}@127.0.0.1:1/0", "prefix": "canaries"},
            "database": {"url": f"postgresql://u:{SECRETS['database password']}@127.0.0.1:1/x"},
            "workers": [{"id": "w", "kind": "sglang", "url": worker.url, "api_key": SECRETS["worker key"]}],
            "tenants": [
                {"id": name, "keys": [{"id": key.id, "hash": key.hash}]}
                for name, key in zip(("acme", "globex"), keys, strict=True)
            ],
            "authentication": {"tokens": [{"issuer": provider.issuer, "audiences": [AUDIENCE]}]},
            "telemetry": {"otlp_endpoint": collector.url, "sample_ratio": 1.0, "log_level": "debug"},
            "drain": {"notice_seconds": 0, "seconds": 1},
        }
        gateway = GatewayProcess("gateway", tmp_path, settings)
        # The process has chosen its port, and so the whole of `admin`.
        text = gateway.settings_file.read_text(encoding="utf-8")
        text = text.replace("admin:\n", f"admin:\n  token: {SECRETS['admin token']}\n")
        gateway.settings_file.write_text(text, encoding="utf-8")
        await gateway.start()
        try:
            async with asyncio.timeout(20):
                while (await gateway.readiness(http))["workers"] != {"w": "up"}:
                    await asyncio.sleep(0.05)
            token = provider.token()
            caller = Caller(http, f"http://{gateway.host}:{gateway.port}")
            await everything_goes_wrong(caller, worker, keys[0].text, keys[1].text, token)
            shown = []
            for path in ("/metrics", "/health/ready", "/admin/v1/overview", "/ui/", "/nope"):
                for given in ("wrong", SECRETS["admin token"]):
                    headers = {"Authorization": f"Bearer {given}"}
                    async with http.get(gateway.admin + path, headers=headers) as answer:
                        shown.append(await answer.text() + str(dict(answer.headers)))
        finally:
            await gateway.stop()
    secrets = {**SECRETS, "key": keys[0].text[12:], "other key": keys[1].text[12:], "token": token[-40:]}
    log = gateway.log.read_text(encoding="utf-8", errors="replace")
    traces = b"".join(collector.bodies).decode("latin-1")

    # Everything was really there to leak.
    assert worker.seen[0].headers["Authorization"] == f"Bearer {SECRETS['worker key']}"
    assert PROMPT in json.dumps(worker.seen[0].body)
    assert {200, 400, 401, 404, 415, 502} <= caller.statuses
    assert "the database does not answer" in log
    assert "acme" in traces
    assert "radixgate_requests_total" in "".join(shown)

    told = {"log": log, "traces": traces, "operators' pages": "".join(shown)}
    for place, text in {**told, "errors": "".join(caller.errors)}.items():
        for name, secret in {**secrets, "prompt": PROMPT}.items():
            assert secret not in text, f"the {name} is in the {place}: {_around(text, secret)}"
    for place, text in told.items():
        assert OWN_WORDS not in text, f"a client's words are in the {place}: {_around(text, OWN_WORDS)}"


def _around(text, secret):
    at = text.index(secret)
    return text[max(0, at - 200) : at + len(secret) + 100]
