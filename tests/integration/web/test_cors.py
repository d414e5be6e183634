"""Pages that call a gateway from a browser, as the browser speaks for them."""

import pytest

from gateway.web.direct.answer import DirectAnswer
from tests.fakes.scripted_worker import ScriptedWorker

PAGE = "https://chat.example.com"
HERE = "http://localhost:5173"
ASKED = "authorization, content-type, x-stainless-lang"


async def preflight(running, origin, path="/v1/chat/completions"):
    """What the browser asks for itself, without a key."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ASKED,
    }
    async with running.http.options(running.url + path, headers=headers) as response:
        return response.status, response.headers, await response.read()


async def readable(running, origin, tenant="acme", **more):
    """The answer's status, and whose script may read it."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}
    headers = {**(running.headers(tenant) if tenant else {}), "Origin": origin}
    url = f"{running.url}/v1/chat/completions"
    async with running.http.post(url, json=body, headers=headers) as response:
        await response.read()
        assert response.headers["Vary"] == "Origin"
        return response.status, response.headers.get("Access-Control-Allow-Origin"), response.headers


async def test_a_page_that_is_listed_may_call_and_read_whatever_comes(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"listen.origins": f'["{PAGE}"]'}) as running:
        for path in (
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/models",
            "/v1/files/file_1",
            "/v1/responses",
        ):
            status, headers, body = await preflight(running, PAGE, path)
            assert (status, body) == (204, b"")
            assert headers["Access-Control-Allow-Origin"] == PAGE
            assert headers["Access-Control-Allow-Headers"] == ASKED
            assert {"POST", "GET", "DELETE"} <= set(headers["Access-Control-Allow-Methods"].split(", "))
        status, may, headers = await readable(running, PAGE)
        assert (status, may, headers["Access-Control-Expose-Headers"]) == (200, PAGE, "*")
        assert (await readable(running, PAGE, stream=True))[:2] == (200, PAGE)
        # A page has to see what is wrong, too.
        assert (await readable(running, PAGE, tenant=None))[:2] == (401, PAGE)
        assert (await readable(running, PAGE, model="none"))[:2] == (404, PAGE)
        assert len(worker.seen) == 2


async def test_other_pages_may_not(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"listen.origins": f'["{PAGE}"]'}) as running:
        for origin in ("https://evil.example.com", f"{PAGE}.evil.com", f"{PAGE}:8443", "null"):
            status, headers, _ = await preflight(running, origin)
            assert (status, headers.get("Access-Control-Allow-Origin")) == (405, None)
            assert (await readable(running, origin))[1] is None


async def test_without_a_list_nothing_is_for_browsers(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        status, headers, _ = await preflight(running, PAGE)
        assert (status, headers.get("Access-Control-Allow-Origin")) == (405, None)


@pytest.mark.parametrize(
    ("tenants", "pages"),
    [({"acme": {}}, {PAGE: PAGE, HERE: HERE}), ({}, {PAGE: None, HERE: HERE})],
    ids=["with keys", "without keys"],
)
async def test_without_keys_only_pages_of_this_machine_may_call(gateway, tenants, pages):
    settings = {"listen.origins": '["*"]'}
    async with ScriptedWorker() as worker, gateway(worker, tenants=tenants, **settings) as running:
        for origin, may in pages.items():
            assert (await preflight(running, origin))[0] == (204 if may else 405)
            assert (await readable(running, origin, tenant=next(iter(tenants), None)))[1] == may


async def test_what_is_no_list_of_headers_is_not_returned(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"listen.origins": '["*"]'}) as running:
        for names in ("a, b;c", "x" * 3000):
            headers = {
                "Origin": PAGE,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": names,
            }
            async with running.http.options(running.url + "/v1/models", headers=headers) as response:
                assert response.status == 204
                assert "Access-Control-Allow-Headers" not in response.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_of_no_page_is_served_directly_and_kept_apart_by_caches(gateway, monkeypatch, stream):
    direct = []
    begin = DirectAnswer.__init__
    monkeypatch.setattr(
        DirectAnswer, "__init__", lambda *args, **more: direct.append(args) or begin(*args, **more)
    )
    async with ScriptedWorker() as worker, gateway(worker, **{"listen.origins": f'["{PAGE}"]'}) as running:
        async with running.chat(stream=stream) as response:
            assert (response.status, response.headers["Vary"]) == (200, "Origin")
            assert "Access-Control-Allow-Origin" not in response.headers
        assert len(direct) == 1
        assert (await readable(running, PAGE, stream=stream))[:2] == (200, PAGE)
        assert len(direct) == 1
