"""Requests through a whole gateway: answers, streams, errors, headers. Scripted workers, real Valkey, sockets."""

import asyncio
import gzip
import json
import zlib
from dataclasses import replace

import aiohttp
import pytest
from aiohttp.web_protocol import RequestPayloadError
from backports import zstd
from prometheus_client.registry import Collector

from tests.fakes.scripted_worker import Script, ScriptedWorker
from tests.integration.files.test_files_api import with_database


def frames(text):
    """The data frames of a stream, decoded, and whether it ended as it should."""
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    done = parts[-1:] == ["[DONE]"]
    return [json.loads(part) for part in parts if part != "[DONE]"], done


async def error_of(response):
    body = await response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"].startswith("req-")
    return response.status, body["error"]["code"], body["error"]["param"]


async def raw(url, path, *headers, method="POST", body=b""):
    """Bytes to a listener as they are, and the whole answer: status, head, decoded JSON."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = [
        f"{method} {path} HTTP/1.1".encode(),
        *headers,
        b"Content-Length: %d" % len(body),
        b"Connection: close",
    ]
    if not any(header.lower().startswith(b"host:") for header in headers):
        head.append(f"Host: {host}:{port}".encode())
    writer.write(b"\r\n".join(head) + b"\r\n\r\n" + body)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    top, _, text = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), top.decode().lower(), json.loads(text)


async def test_an_answer_comes_back_as_the_worker_gave_it(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat() as response:
            answer = await response.json()
    assert (response.status, answer["choices"][0]["message"]["content"]) == (200, "w0 w1 w2 w3 ")
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["server"] == "radixgate"


async def test_a_stream_keeps_every_frame_and_withholds_usage_that_was_not_requested(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat(stream=True) as response:
            got, done = frames(await response.text())
        assert worker.seen[-1].body["stream_options"] == {
            "include_usage": True,
            "continuous_usage_stats": True,
        }
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert [frame["choices"][0]["finish_reason"] for frame in got] == [None, None, None, "length"]
    assert all(frame["usage"] is None for frame in got)
    assert done


async def test_a_client_that_requests_usage_gets_it_in_a_last_frame_without_choices(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat(stream=True, stream_options={"include_usage": True}) as response:
            got, done = frames(await response.text())
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] == 4
    assert done


USAGE_ASKED = {"include_usage": True, "continuous_usage_stats": True}
"""What the gateway asks of engines that can report their usage in every chunk."""


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"include_obfuscation": False}, {"include_obfuscation": False, **USAGE_ASKED}),
        ({"include_usage": True, "continuous_usage_stats": True}, USAGE_ASKED),
        ({"continuous_usage_stats": True}, USAGE_ASKED),
        (None, USAGE_ASKED),
    ],
)
async def test_the_options_of_a_stream_reach_the_worker(gateway, given, sent):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat(stream=True, stream_options=given) as response:
            assert response.status == 200
            await response.read()
        assert worker.seen[-1].body["stream_options"] == sent


async def test_both_prefixes_and_both_kinds_of_key_are_accepted(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        body = {"model": "m", "prompt": "hi"}
        for path in ("/v1/completions", "/completions"):
            async with running.http.post(
                running.url + path, json=body, headers=running.headers()
            ) as response:
                assert response.status == 200
        headers = {"x-api-key": running.keys["acme"].text}
        async with running.http.post(running.url + "/v1/completions", json=body, headers=headers) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/v1/chat/completions",
        "//chat/completions",
        "//openai/deployments/m/chat/completions?api-version=2024-10-21",
        "/openai/v1/chat/completions?api-version=preview",
    ],
)
async def test_a_slip_in_the_base_url_is_forgiven(gateway, path):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with ScriptedWorker() as worker, gateway(worker) as running:
        status, _, _ = await raw(
            running.url,
            path,
            b"Authorization: " + running.headers()["Authorization"].encode(),
            body=json.dumps(body).encode(),
        )
        assert status == 200
        async with running.http.post(f"{running.url}/v1/v1/messages", json={}) as response:
            assert response.status == 401


@pytest.mark.parametrize("more", [{"model": "gpt-4o"}, {}])
async def test_azures_paths_name_the_model_and_its_header_the_key(gateway, more):
    body = {"messages": [{"role": "user", "content": "hi"}], **more}
    async with ScriptedWorker() as worker, gateway(worker) as running:
        headers = {"api-key": running.keys["acme"].text}
        url = f"{running.url}/openai/deployments/m/chat/completions?api-version=2024-10-21"
        for stream in (False, True):
            async with running.http.post(url, json={**body, "stream": stream}, headers=headers) as response:
                assert response.status == 200, await response.text()
                await response.read()
        async with running.http.post(url, json=[], headers=headers) as response:
            assert response.status == 400
        async with running.http.post(url.replace("/m/", "/none/"), json=body, headers=headers) as response:
            assert await error_of(response) == (404, "model_not_found", "model")
    assert [seen.body["model"] for seen in worker.seen] == ["m", "m"]


async def test_the_worker_gets_the_fields_as_they_were_and_those_that_the_gateway_owns(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat(
            min_p=0.1, cache_salt="mine", rid="mine", priority=9, metadata={"a": [1]}
        ) as response:
            await response.read()
        body, headers = worker.seen[-1].body, worker.seen[-1].headers
    assert (body["min_p"], body["metadata"]) == (0.1, {"a": [1]})
    assert body["rid"] == headers["x-request-id"] == response.headers["x-request-id"]
    assert body["cache_salt"] not in ("mine", "")
    assert "priority" not in body
    assert "traceparent" not in headers
    assert "Authorization" not in headers


async def test_two_tenants_have_different_salts_and_one_tenant_always_the_same(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        for tenant in ("acme", "globex", "acme"):
            async with running.chat(tenant=tenant) as response:
                await response.read()
        salts = [seen.body["cache_salt"] for seen in worker.seen]
    assert salts[0] == salts[2] != salts[1]


async def test_tenants_of_one_group_share_a_salt_and_shared_ones_have_none(gateway):
    group = {"isolation": {"mode": "group", "group": "friends"}}
    tenants = {"a": group, "b": group, "c": {"isolation": {"mode": "shared"}}}
    async with ScriptedWorker() as worker, gateway(worker, tenants=tenants) as running:
        for tenant in tenants:
            async with running.chat(tenant=tenant) as response:
                await response.read()
        salts = [seen.body.get("cache_salt") for seen in worker.seen]
    assert salts[0] == salts[1]
    assert salts[0]
    assert salts[2] is None


@pytest.mark.parametrize(
    ("kind", "mode", "warned"),
    [("openai", "isolated", True), ("openai", "shared", False), ("sglang", "isolated", False)],
)
async def test_a_kind_that_cannot_keep_tenants_apart_is_logged_once_at_start(
    gateway, caplog, kind, mode, warned
):
    tenants = {name: {"isolation": {"mode": mode}} for name in ("acme", "globex")}
    async with (
        ScriptedWorker() as one,
        ScriptedWorker() as other,
        gateway(one, other, kind=kind, tenants=tenants),
    ):
        said = [record.getMessage() for record in caplog.records if "cache" in record.getMessage()]
    assert len(said) == warned
    if warned:
        assert "w0 (openai), w1 (openai)" in said[0]


async def test_models_are_listed_as_far_as_the_key_may_call_them(gateway):
    plan = {"models": {"allow": ["m", "n-*"], "deny": ["n-2"]}}
    async with (
        ScriptedWorker(models=["m", "n-1", "n-2", "org/other"]) as worker,
        gateway(worker, plan=plan) as running,
    ):
        async with running.http.get(running.url + "/v1/models", headers=running.headers()) as response:
            listed = await response.json()
        assert [card["id"] for card in listed["data"]] == ["m", "n-1"]
        assert set(listed["data"][0]) == {"id", "object", "created", "owned_by"}
        async with running.http.get(running.url + "/v1/models/n-1", headers=running.headers()) as response:
            assert (await response.json())["id"] == "n-1"
        async with running.http.get(
            running.url + "/v1/models/org/other", headers=running.headers()
        ) as response:
            assert await error_of(response) == (404, "model_not_found", "model")
        async with running.http.get(running.url + "/v1/models") as response:
            assert (await error_of(response))[0] == 401


async def test_an_alias_is_the_model_it_stands_for(gateway):
    models = '[{"name": "m", "aliases": ["gpt-4o-mini"]}]'
    async with ScriptedWorker() as worker, gateway(worker, models=models) as running:
        async with running.chat(model="gpt-4o-mini") as response:
            assert response.status == 200
    assert worker.seen[-1].body["model"] == "m"


async def test_an_unknown_model_is_refused_with_the_names_that_the_tenant_may_use(gateway):
    plan = {"models": {"deny": ["secret"]}}
    models = '[{"name": "m", "aliases": ["gpt-4o-mini"]}]'
    async with ScriptedWorker(models=["m", "secret"]) as worker:
        async with (
            gateway(worker, plan=plan, models=models) as running,
            running.chat(model="nope") as response,
        ):
            message = (await response.json())["error"]["message"]
    assert message == "The model 'nope' does not exist. You may use: gpt-4o-mini, m."


async def test_refusals_have_their_status_and_their_code(gateway):
    plan = {"models": {"deny": ["secret"]}}
    async with ScriptedWorker(models=["m", "secret"]) as worker, gateway(worker, plan=plan) as running:
        async with running.chat(model="nope") as response:
            assert await error_of(response) == (404, "model_not_found", "model")
        async with running.chat(model="secret") as response:
            assert await error_of(response) == (403, "model_not_allowed", "model")
        async with running.chat(messages=[]) as response:
            assert await error_of(response) == (400, "invalid_request", "messages")
        for headers in (
            {},
            {"Authorization": "Bearer rg-wrong"},
            {"Authorization": "Basic eDp5"},
            {"x-api-key": "x"},
        ):
            async with running.http.post(
                running.url + "/v1/chat/completions", json={}, headers=headers
            ) as response:
                assert await error_of(response) == (401, "invalid_api_key", None)
        async with running.http.get(running.url + "/v1/chat/completions") as response:
            assert (await error_of(response))[:2] == (405, "method_not_allowed")
            assert response.headers["allow"] == "POST"
        async with running.http.post(running.url + "/invocations") as response:
            assert (await error_of(response))[:2] == (404, "not_found")
        assert worker.seen == []
        assert running.idle


async def test_a_body_that_is_too_large_is_refused_declared_or_not(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"requests.body_bytes_max": "1000"}) as running:
        async with running.chat("x" * 2000) as response:
            assert (await error_of(response))[:2] == (413, "payload_too_large")

        async def pieces():
            for _ in range(20):
                yield b"x" * 100

        async with running.http.post(
            running.url + "/v1/chat/completions", data=pieces(), headers=running.headers()
        ) as response:
            assert (await error_of(response))[:2] == (413, "payload_too_large")


async def test_a_body_that_does_not_come_is_not_waited_for(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **{"requests.body_seconds_max": "0.05"}) as running,
    ):

        async def slow():
            yield b"{"
            await asyncio.sleep(5)

        async with running.http.post(
            running.url + "/v1/chat/completions", data=slow(), headers=running.headers()
        ) as response:
            assert (await error_of(response))[:2] == (408, "body_timeout")


async def unfinished(running, size):
    """An upload of which so many bytes have come and more are promised."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    key = running.headers()["Authorization"]
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: {key}\r\n"
        f"Content-Length: 100000\r\n\r\n".encode()
        + b" " * size
    )
    await writer.drain()
    return reader, writer


async def test_uploads_together_have_a_bound_and_always_give_back_what_they_held(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"listen.memory_bytes_max": 50_000}) as running:
        overview = running.here.gateway.overview
        for turn in range(3):
            _, one = await unfinished(running, 30_000)
            await asyncio.sleep(0.05)
            reader, other = await unfinished(running, 30_000)
            async with asyncio.timeout(60):
                assert b"HTTP/1.1 503" in await reader.readline()
                assert b'"code":"overloaded"' in await reader.readuntil(b"}")
            one.transport.abort()
            other.transport.abort()
            await running.until(lambda n=turn: overview.all.total.requests == 3 * n + 2)
            async with running.chat("x" * 5000) as response:
                assert response.status == 200


async def test_no_body_is_read_without_a_key(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        running.keys["acme"] = replace(running.keys["acme"], text="rg-wrong")
        reader, writer = await unfinished(running, 10)
        async with asyncio.timeout(60):
            assert b"HTTP/1.1 401" in await reader.readline()
        writer.close()


BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 50_000}]}).encode()


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        (b"gzip", gzip.compress),
        (b"GZIP", gzip.compress),
        (b"deflate", zlib.compress),
        (b"zstd", zstd.compress),
    ],
)
async def test_a_compressed_body_is_read_within_the_bounds_of_a_body(gateway, encoding, compress):
    bounds = {"requests.body_bytes_max": 1024**2}
    async with ScriptedWorker() as worker, gateway(worker, **bounds) as running:
        key = b"Authorization: " + running.headers()["Authorization"].encode()
        named = b"Content-Encoding: " + encoding
        asked = running.url, "/v1/chat/completions", key, named
        status, _, _ = await raw(*asked, body=compress(BODY))
        assert status == 200
        status, _, body = await raw(*asked, body=compress(bytes(2 * 1024**2)))
        assert (status, body["error"]["code"]) == (413, "payload_too_large")
        for broken in (compress(BODY)[:-9], compress(BODY) + b"more", BODY):
            status, _, body = await raw(*asked, body=broken)
            assert (status, body["error"]["code"]) == (400, "invalid_request")
        # Without a key nothing is decompressed.
        status, _, _ = await raw(
            running.url, "/v1/chat/completions", named, body=compress(bytes(2 * 1024**2))
        )
        assert status == 401
    assert worker.seen[0].body["messages"] == json.loads(BODY)["messages"]


async def test_a_byte_order_mark_before_the_body_is_forgiven(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        body = b'\xef\xbb\xbf{"model":"m","prompt":"hi"}'
        headers = {**running.headers(), "Content-Type": "application/json"}
        async with running.http.post(f"{running.url}/v1/completions", data=body, headers=headers) as response:
            assert response.status == 200


async def test_a_body_in_an_unknown_encoding_is_refused(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        key = b"Authorization: " + running.headers()["Authorization"].encode()
        bomb = gzip.compress(
            json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
        )
        for encoding in (b"br", b"identity, gzip", b"\xff"):
            named = b"Content-Encoding: " + encoding
            status, _, body = await raw(running.url, "/v1/chat/completions", key, named, body=bomb)
            assert (status, body["error"]["code"]) == (415, "unsupported_encoding")
            status, _, body = await raw(running.url, "/v1/chat/completions", named, body=bomb)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        status, _, _ = await raw(
            running.url,
            "/v1/completions",
            key,
            b"Content-Encoding: identity",
            body=b'{"model":"m","prompt":"hi"}',
        )
        assert status == 200


@pytest.mark.parametrize("encoding", [b"", b"identity", b" Identity "])
async def test_an_empty_content_encoding_is_none(gateway, encoding):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        key = b"Authorization: " + running.headers()["Authorization"].encode()
        named = b"Content-Encoding: " + encoding
        status, _, _ = await raw(running.url, "/v1/chat/completions", key, named, body=BODY)
        assert status == 200
        form = b"Content-Type: multipart/form-data; boundary=x"
        for path in ("/v1/files", "/v1/batches", "/v1/messages/batches"):
            status, _, body = await raw(running.url, path, key, named, form, body=b"{}")
            assert (status, body["error"]["type"]) == (400, "invalid_request_error")


async def test_a_body_that_breaks_its_own_encoding_is_a_mistake_of_the_clients(gateway, monkeypatch):
    def broken(self, size=-1):
        raise RequestPayloadError("cannot be decoded")

    async def in_chunks():
        yield b"{}"

    async with ScriptedWorker() as worker, gateway(worker) as running:
        monkeypatch.setattr(aiohttp.StreamReader, "read_nowait", broken)
        url = f"{running.url}/v1/chat/completions"
        async with running.http.post(url, data=in_chunks(), headers=running.headers()) as response:
            assert await error_of(response) == (400, "invalid_request", None)


async def test_what_is_no_text_is_refused_wherever_it_stands(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        key = b"Authorization: " + running.headers()["Authorization"].encode()
        body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"unknown":"\xff"}'
        status, _, answer = await raw(running.url, "/v1/chat/completions", key, body=body)
        assert (status, answer["error"]["code"]) == (400, "invalid_request")
        assert worker.seen == []


@pytest.mark.parametrize(
    "header", [b"Authorization: Bearer \xff", b"x-api-key: rg-\xff", b"Authorization: \xff"]
)
async def test_a_key_that_is_no_text_is_an_unknown_one(gateway, header):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **{"admin.token": "5e5a3e5e5a3e4f2b9c0d1a7e6b8f3c2d"}) as running,
    ):
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/m"),
        ):
            status, _, body = await raw(running.url, path, header, method=method)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        status, _, body = await raw(running.admin, "/admin/v1/overview", header, method="GET")
        assert (status, body["status"]) == (401, 401)
        cookie = b"Cookie: radixgate_session=\xff"
        status, _, body = await raw(running.admin, "/admin/v1/overview", cookie, method="GET")
        assert status == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/messages"),
        ("GET", "/v1/models"),
        ("GET", "/v1/usage"),
        ("GET", "/v1/batches"),
    ],
)
async def test_two_keys_in_one_request_are_ambiguous(gateway, method, path):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        right = b"Authorization: " + running.headers()["Authorization"].encode()
        other = b"authorization: Bearer rg-other"
        for headers in ((right, other), (other, right)):
            status, _, body = await raw(running.url, path, *headers, method=method, body=BODY)
            assert status == 401
            assert "authorization was sent with different values" in body["error"]["message"]
            expected = ("type", "error") if path == "/v1/messages" else ("code", "invalid_api_key")
            assert expected in [*body.items(), *body["error"].items()]
        assert worker.seen == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/v1/overview"),
        ("POST", "/admin/v1/playground"),
        ("GET", "/ui/session"),
        ("GET", "/metrics"),
    ],
)
async def test_two_tokens_in_one_request_of_an_operator_are_ambiguous(gateway, method, path):
    token = "5e5a3e5e5a3e4f2b9c0d1a7e6b8f3c2d"
    settings = {"admin.token": token, "admin.metrics_token": token}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        right, other = f"Authorization: Bearer {token}".encode(), b"authorization: Bearer other"
        for headers in ((right, other), (other, right)):
            status, _, problem = await raw(running.admin, path, *headers, method=method)
            assert (status, problem["status"]) == (401, 401)
            assert "authorization was sent with different values" in problem["detail"]


async def test_two_keys_of_tenants_in_the_playground_are_ambiguous(gateway):
    token = "5e5a3e5e5a3e4f2b9c0d1a7e6b8f3c2d"
    async with ScriptedWorker() as worker, gateway(worker, **{"admin.token": token}) as running:
        headers = [f"Authorization: Bearer {token}", "x-radixgate-key: rg-one", "x-radixgate-key: rg-two"]
        status, _, body = await raw(
            running.admin, "/admin/v1/playground", *(header.encode() for header in headers), body=BODY
        )
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert "x-radixgate-key was sent with different values" in body["error"]["message"]


async def test_the_same_key_twice_in_one_request_counts_once(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        key = b"Authorization: " + running.headers()["Authorization"].encode()
        status, _, _ = await raw(running.url, "/v1/chat/completions", key, key, body=BODY)
        assert status == 200


async def test_unknown_urls_are_answered_in_the_listeners_own_format(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        key = b"Authorization: " + running.headers()["Authorization"].encode()
        for method, path, answer in (
            ("GET", "/v1/models/%ff%00", (404, "model_not_found")),
            ("GET", "/v1/foo%ed%a0%80", (404, "not_found")),
            ("DELETE", "/v1/models", (405, "method_not_allowed")),
            ("PUT", "/v1/models/", (405, "method_not_allowed")),
            ("POST", "/v1/chat/completions/more", (404, "not_found")),
            ("OPTIONS", "*", (404, "not_found")),
        ):
            host = running.url.removeprefix("http://").encode()
            status, _, body = await raw(running.url, path, key, b"Host: " + host, method=method)
            assert (status, body["error"]["code"]) == answer
        for method, path, status in (
            ("GET", "/nope", 404),
            ("POST", "/metrics", 405),
            ("GET", "/ui/nope", 404),
        ):
            got, top, body = await raw(running.admin, path, method=method)
            assert (got, body["status"]) == (status, status)
            assert "content-type: application/problem+json" in top


async def test_without_keys_only_requests_that_name_this_machine_as_host_are_answered(gateway):
    """A foreign web page may point its own host name to 127.0.0.1 and then send requests to the gateway."""
    async with ScriptedWorker() as worker, gateway(worker, tenants={}) as running:
        port = running.url.rsplit(":", 1)[1]
        for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LocalHost:1"):
            header = f"Host: {host}".encode()
            assert (await raw(running.url, "/v1/models", header, method="GET"))[0] == 200
            assert (await raw(running.admin, "/health/live", header, method="GET"))[0] == 200
        for host in ("evil.example", f"127.0.0.1.evil.example:{port}", "localhost.evil", "x@localhost:1", ""):
            header = f"Host: {host}".encode()
            status, _, body = await raw(running.url, "/v1/models", header, method="GET")
            assert (status, body["error"]["code"]) == (403, "host_not_allowed")
            status, _, body = await raw(running.url, "/v1/completions", header, body=b"{}")
            assert (status, body["error"]["code"]) == (403, "host_not_allowed")
            assert (await raw(running.admin, "/admin/v1/overview", header, method="GET"))[0] == 403


async def test_with_keys_hosts_have_any_name(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **{"admin.token": "5e5a3e5e5a3e4f2b9c0d1a7e6b8f3c2d"}) as running,
    ):
        key = b"Authorization: " + running.headers()["Authorization"].encode()
        host = b"Host: llm.example"
        assert (await raw(running.url, "/v1/models", key, host, method="GET"))[0] == 200
        assert (await raw(running.admin, "/health/live", host, method="GET"))[0] == 200


async def test_a_worker_that_finds_a_mistake_is_quoted_in_our_shape_and_is_not_blamed(gateway):
    body = {
        "error": {"message": "temperature must be positive", "type": "x", "param": "temperature", "code": 400}
    }
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(status=400, body=body)
        for _ in range(5):
            async with running.chat() as response:
                answer = await response.json()
                assert (response.status, answer["error"]["param"]) == (400, "temperature")
                assert answer["error"]["code"] is None
        (only,) = running.here.gateway.fleet
        assert (only.health.state.value, only.failures) == ("up", 0)
        assert len(worker.seen) == 5
        assert running.idle


@pytest.mark.parametrize("status", [401, 403, 405])
async def test_other_refusals_of_a_worker_are_no_answer_and_no_illness(gateway, status):
    """The gateway's own credentials or settings: nothing that the client should see or be blamed for."""
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(status=status)
        for _ in range(4):
            async with running.chat() as response:
                assert (await error_of(response))[:2] == (502, "worker_error")
        (only,) = running.here.gateway.fleet
        assert only.health.state.value == "up"


async def test_tools_and_template_arguments_reach_a_worker_whose_tokenizer_is_known(gateway, checkpoint):
    models = json.dumps([{"name": "m", "tokenizer": str(checkpoint)}])
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    async with ScriptedWorker() as worker, gateway(worker, models=models) as running:
        for more in (
            {"tools": tools},
            {"tools": []},
            {"tools": None},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": None},
        ):
            async with running.chat(**more) as response:
                assert response.status == 200
            assert {name: worker.seen[-1].body[name] for name in more} == more
        async with running.chat(chat_template_kwargs=[]) as response:
            assert await error_of(response) == (400, "invalid_request", "chat_template_kwargs")


async def test_prompts_that_are_too_long_are_refused_before_they_cost_anything(gateway, checkpoint):
    models = json.dumps([{"name": "m", "tokenizer": str(checkpoint), "context_length": 100}])
    limits = [{"requests": 5, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, models=models, limits=limits) as running:
        async with running.chat("word " * 200) as response:
            assert await error_of(response) == (400, "context_length_exceeded", "messages")
        async with running.chat("word " * 200_000) as response:
            assert await error_of(response) == (400, "context_length_exceeded", "messages")
        async with running.chat("word", max_tokens=200) as response:
            assert (await error_of(response))[:2] == (400, "context_length_exceeded")
        async with running.chat("word") as response:
            assert response.headers["x-ratelimit-remaining-requests"] == "4"
        assert len(worker.seen) == 1


async def test_a_prompt_is_refused_by_estimate_where_it_is_certain_to_be_too_long(gateway):
    models = json.dumps([{"name": "m", "context_length": 100}])
    async with ScriptedWorker() as worker, gateway(worker, models=models) as running:
        async with running.chat("word " * 200) as response:
            assert await error_of(response) == (400, "context_length_exceeded", "messages")
        async with running.chat(
            "word " * 90
        ) as response:  # four bytes as a token: that may be too long, or not
            assert response.status == 200
        assert len(worker.seen) == 1


async def test_a_workers_refusal_because_of_the_context_has_the_code_of_each_api(gateway):
    said = {"object": "error", "code": 400, "type": "BadRequestError", "param": None}
    said["message"] = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
    message = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    async with ScriptedWorker(script=Script(status=400, body=said)) as worker, gateway(worker) as running:
        for stream in (False, True):
            async with running.chat(stream=stream) as response:
                assert (await error_of(response))[:2] == (400, "context_length_exceeded")
            body = {**message, "stream": stream}
            async with running.http.post(
                f"{running.url}/v1/messages", json=body, headers=running.headers()
            ) as response:
                error = (await response.json())["error"]
            assert error["message"] == "prompt is too long: 5000 tokens > 4096 maximum"
        await running.until(lambda: running.idle)


async def asked(running, worker, **fields):
    """The bound on the answer, as the worker got it."""
    async with running.http.post(
        running.url + "/v1/completions", json={"model": "m", **fields}, headers=running.headers()
    ) as response:
        assert response.status == 200
    return worker.seen[-1].body.get("max_tokens")


async def test_a_plan_bounds_answers_that_the_client_does_not(gateway, checkpoint):
    exact = json.dumps([{"name": "m", "tokenizer": str(checkpoint)}])
    for models in (exact, "[]"):
        async with (
            ScriptedWorker() as worker,
            gateway(worker, plan={"context_length_max": 100}, models=models) as running,
        ):
            assert await asked(running, worker, prompt=[1] * 30) == 70
            assert await asked(running, worker, prompt=[1] * 30, max_tokens=None) == 70
            assert await asked(running, worker, prompt=[[1] * 30, [1] * 50]) == 50
            assert await asked(running, worker, prompt=[1] * 99) == 1
            assert await asked(running, worker, prompt=[1] * 30, max_tokens=5) == 5
            assert await asked(running, worker, prompt=[1] * 30, max_completion_tokens=5) is None
            async with running.chat() as response:
                assert response.status == 200
            assert 0 < worker.seen[-1].body["max_tokens"] < 100


async def test_an_estimated_prompt_that_seems_to_fill_the_plan_still_gets_an_answer(gateway):
    async with ScriptedWorker() as worker, gateway(worker, plan={"context_length_max": 100}) as running:
        assert await asked(running, worker, prompt="x" * 600) == 100


async def test_without_a_bound_in_the_plan_the_worker_gets_none(gateway):
    models = json.dumps([{"name": "m", "context_length": 100}])
    async with ScriptedWorker() as worker, gateway(worker, models=models) as running:
        assert await asked(running, worker, prompt="hi") is None


async def test_the_operators_listener_answers(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.chat() as response:
            await response.read()
        async with running.http.get(running.admin + "/health/live") as response:
            assert response.status == 200
        async with running.http.get(running.admin + "/health/ready") as response:
            ready = await response.json()
            assert (response.status, ready["ready"], ready["redis"]) == (200, True, "shared")
        async with running.http.get(running.admin + "/metrics") as response:
            metrics = await response.text()
            assert 'radixgate_requests_total{code="ok",model="m",tenant="acme"} 1.0' in metrics
            assert 'radixgate_worker_health{state="up",worker="w0"} 1.0' in metrics
        async with running.http.get(running.admin + "/admin/v1/overview") as response:
            shown = await response.json()
            assert shown["tenants"][0]["total"]["requests"] == 1
            assert shown["workers"][0]["id"] == "w0"
        for path in ("/", "/ui", "/ui/", "/ui/main.js", "/ui/console.css", "/ui/uplot.js"):
            async with running.http.get(running.admin + path) as response:
                assert response.status == 200
                assert "default-src 'none'; script-src 'self'" in response.headers["content-security-policy"]
        async with running.http.get(running.admin + "/ui/../settings.py") as response:
            assert response.status == 404


async def test_metrics_that_cannot_be_read_to_their_end_are_no_answer(gateway):
    class Broken(Collector):
        def describe(self):
            return []

        def collect(self):
            raise RuntimeError

    async with ScriptedWorker() as worker, gateway(worker) as running:
        broken, registry = Broken(), running.here.gateway.metrics
        registry.register(broken)
        with pytest.raises(aiohttp.ClientPayloadError):
            async with running.http.get(running.admin + "/metrics") as response:
                await response.read()
        registry.unregister(broken)
        async with running.http.get(running.admin + "/metrics") as response:
            assert (await response.text()).count("radixgate_index_up") == 3


async def test_the_operator_page_requires_its_token(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **{"admin.token": "0b5e5a3e5e5a3e4f2b9c0d1a7e6b8f3c"}) as running,
    ):
        for path in ("/ui/session", "/admin/v1/overview"):
            async with running.http.get(running.admin + path) as response:
                assert response.status == 401
            async with running.http.get(
                running.admin + path, headers={"Authorization": "Bearer no"}
            ) as response:
                assert response.status == 401
        # The page itself has no data: it asks for the token.
        async with running.http.get(running.admin + "/ui/") as response:
            assert response.status == 200
        # It takes the token from its own address, and sends it as a header: an address authorizes nothing.
        token = "0b5e5a3e5e5a3e4f2b9c0d1a7e6b8f3c"
        async with running.http.get(running.admin + "/ui/session", params={"token": token}) as response:
            assert response.status == 401
            assert not response.cookies
        for path in ("/ui/session", "/admin/v1/overview", "/admin/v1/queue"):
            async with running.http.get(
                running.admin + path, headers={"Authorization": f"Bearer {token}"}
            ) as response:
                assert response.status == 200
        async with running.http.get(running.admin + "/metrics") as response:
            assert response.status == 200


async def test_an_operator_page_that_others_can_reach_needs_a_token(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"admin.host": "0.0.0.0"}) as running:
        url = running.admin.replace("0.0.0.0", "127.0.0.1")
        async with running.http.get(url + "/ui/") as response:
            assert response.status == 401
        async with running.http.get(url + "/health/ready") as response:
            assert response.status == 200


async def test_a_unix_socket_serves_too(gateway, tmp_path):
    socket = str(tmp_path / "gateway.sock")
    async with ScriptedWorker() as worker, gateway(worker, **{"listen.unix_socket": socket}) as running:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as http:
            async with http.get("http://gateway/v1/models", headers=running.headers()) as response:
                assert response.status == 200


async def test_what_is_no_http_is_refused_and_leaves_no_traceback(gateway, caplog):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        host, port = running.url.removeprefix("http://").split(":")
        for nonsense in (
            b"\x16\x03\x01 secret\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /\x00 HTTP/1.1\r\nA\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(nonsense)
            assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.0 400 ")
            writer.close()
    assert "Traceback" not in caplog.text
    assert "secret" not in caplog.text


async def test_the_tenants_listener_has_the_tenants_page_and_not_the_operators_console(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.http.get(running.url + "/ui/") as response:
            assert response.status == 200
            assert "script-src 'self'" in response.headers["content-security-policy"]
            etag = response.headers["etag"]
        async with running.http.get(running.url + "/ui/", headers={"If-None-Match": etag}) as response:
            assert response.status == 304
        for path in ("/ui/index.html", "/ui/tenants.js", "/ui/nope.js"):
            async with running.http.get(running.url + path) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")
