"""Media from listed hosts: fetched by the gateway and given to the worker as content. Real sockets."""

import asyncio
import socket
from base64 import b64encode

import pytest
from aiohttp import web

from gateway.domain.errors import Overloaded, TenantQueueFull
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.media import media_fetch
from gateway.media.media_fetch import MediaFetcher, MediaFetchFailed
from gateway.settings.types import MediaHost
from tests.fakes.scripted_worker import ScriptedWorker

CAT = b"\x89PNG a cat"
AS_DATA = "data:image/png;base64," + b64encode(CAT).decode()


class Host:
    """Serves a cat, and what is worse. `asked`: the paths, in order."""

    def __init__(self):
        self.asked = []
        self.seen = None

    async def handle(self, http):
        self.asked.append(http.path_qs)
        self.seen = http.headers
        if http.path == "/cat":
            return web.Response(body=CAT, content_type="image/png")
        if http.path == "/to":
            return web.Response(status=302, headers={"location": http.query["at"]})
        if http.path == "/loop":
            return web.Response(status=302, headers={"location": "/loop"})
        if http.path == "/html":
            return web.Response(text="<b>", content_type="text/html")
        if http.path == "/packed":
            return web.Response(body=CAT, content_type="image/png", headers={"content-encoding": "gzip"})
        if http.path == "/large":
            return web.Response(body=bytes(5000), content_type="image/png")
        if http.path == "/silent":
            await asyncio.sleep(30)
        return web.Response(status=404)


def lease(bytes_max=10**6):
    return MemoryLease(MemoryBudget(bytes_max))


@pytest.fixture
async def host():
    made = Host()
    app = web.Application()
    app.router.add_get("/{path:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    made.url = f"http://127.0.0.1:{made.port}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def fetcher(host):
    made = MediaFetcher((MediaHost(f"127.0.0.1:{host.port}"), MediaHost(f"localhost:{host.port}")), 4000)
    yield made
    await made.close()


async def test_a_listed_host_gets_the_call_and_its_answer_becomes_data(host, fetcher):
    assert await fetcher.fetch([f"{host.url}/cat?a=1", f"{host.url}/cat"], "acme", lease()) == [
        AS_DATA,
        AS_DATA,
    ]
    assert "/cat?a=1" in host.asked
    assert not {"Authorization", "Cookie", "Referer"} & set(host.seen)


async def test_redirects_are_followed_as_far_as_each_of_them_is_allowed(host, fetcher):
    assert await fetcher.fetch([f"{host.url}/to?at=/cat"], "acme", lease()) == [AS_DATA]
    for target in (
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "http://127.0.0.1:1/",
        "//evil.example/x",
    ):
        with pytest.raises(MediaFetchFailed) as refused:
            await fetcher.fetch([f"{host.url}/to?at={target}"], "acme", lease())
        assert isinstance(refused.value.__cause__, ValueError)


async def test_a_name_that_leads_to_an_address_that_is_not_public_is_not_followed(host, fetcher):
    """The host is listed, but its owner could point the name to the metadata service."""
    assert socket.getaddrinfo("localhost", host.port)
    with pytest.raises(MediaFetchFailed):
        await fetcher.fetch([f"http://localhost:{host.port}/cat"], "acme", lease())
    assert host.asked == []


@pytest.mark.parametrize(
    "address",
    [
        *("http://{at}@evil.example/cat", "http://user:pw@{at}/cat", "http://evil.example#@{at}/cat", "{at}/cat"),
        *("http://evil.example\\@{at}/cat", "ftp://{at}/cat", "http:///cat", "http://[::1/", "http://{at}x/cat"),
        *("http://2130706433:{port}/cat", "http://127.1:{port}/cat", "http://0x7f.1:{port}/cat", "http://\u2460/"),
    ],
)  # fmt: skip
async def test_no_spelling_leads_anywhere_else(host, fetcher, address):
    with pytest.raises(MediaFetchFailed):
        await fetcher.fetch([address.format(at=f"127.0.0.1:{host.port}", port=host.port)], "acme", lease())
    assert host.asked == []


@pytest.mark.parametrize("path", ["/loop", "/html", "/packed", "/large", "/nothing"])
async def test_what_is_no_medium_of_a_decent_size_is_not_taken(host, fetcher, path):
    with pytest.raises(MediaFetchFailed):
        await fetcher.fetch([host.url + path], "acme", lease())
    assert len(host.asked) <= media_fetch.REDIRECTS_MAX + 1


async def test_the_media_of_a_request_share_one_bound(host):
    fetcher = MediaFetcher((MediaHost(f"127.0.0.1:{host.port}"),), 2 * len(CAT))
    assert len(await fetcher.fetch([f"{host.url}/cat"] * 2, "acme", lease())) == 2
    with pytest.raises(MediaFetchFailed):
        await fetcher.fetch([f"{host.url}/cat"] * 3, "acme", lease())
    await fetcher.close()


async def test_a_host_that_does_not_answer_is_not_waited_for(host, monkeypatch):
    monkeypatch.setattr(media_fetch, "FETCH_SECONDS_MAX", 0.2)
    fetcher = MediaFetcher((MediaHost(f"127.0.0.1:{host.port}"),), 4000)
    with pytest.raises(MediaFetchFailed):
        await asyncio.wait_for(fetcher.fetch([f"{host.url}/silent"], "acme", lease()), 60)
    await fetcher.close()


async def test_what_is_fetched_takes_memory_of_the_request(host, fetcher):
    budget = MemoryBudget(2 * len(CAT) * media_fetch.COPIES)
    memory = MemoryLease(budget)
    await fetcher.fetch([f"{host.url}/cat"] * 2, "acme", memory)
    assert memory.bytes_held == budget.bytes_max
    with pytest.raises(Overloaded):
        await fetcher.fetch([f"{host.url}/cat"], "acme", MemoryLease(budget))
    memory.release()
    assert await fetcher.fetch([f"{host.url}/cat"], "acme", MemoryLease(budget)) == [AS_DATA]


async def test_a_tenant_leaves_connections_to_the_others(host, fetcher):
    slow = [
        asyncio.create_task(fetcher.fetch([f"{host.url}/silent"] * 16, "acme", lease())) for _ in range(4)
    ]
    async with asyncio.timeout(60):
        while host.asked.count("/silent") < media_fetch.TENANT_CONNECTIONS_MAX:
            await asyncio.sleep(0.01)
        assert await fetcher.fetch([f"{host.url}/cat"] * 16, "globex", lease()) == [AS_DATA] * 16
        assert host.asked.count("/silent") == media_fetch.TENANT_CONNECTIONS_MAX
        with pytest.raises(TenantQueueFull):
            await fetcher.fetch([f"{host.url}/cat"] * 16, "acme", lease())
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert not fetcher._asked
    assert not fetcher._turns


def with_image(address):
    image = {"type": "image_url", "image_url": {"url": address}}
    return [{"role": "user", "content": [{"type": "text", "text": "a?"}, image]}]


async def test_the_worker_gets_the_content_and_fetches_nothing(gateway, host):
    settings = {"requests.media_hosts": f'["127.0.0.1:{host.port}"]'}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        async with running.chat(messages=with_image(f"{host.url}/cat")) as response:
            assert response.status == 200, await response.text()
        assert worker.seen[0].body["messages"] == with_image(AS_DATA)
        async with running.chat(messages=with_image(f"{host.url}/html")) as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (400, "invalid_request", "messages")
        assert len(worker.seen) == 1
        assert running.idle


async def test_without_listed_hosts_no_host_gets_a_call(gateway, host):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat(messages=with_image(f"{host.url}/cat")) as response:
            assert response.status == 400
        async with running.chat(messages=with_image(AS_DATA)) as response:
            assert response.status == 200
        assert (len(worker.seen), host.asked) == (1, [])
