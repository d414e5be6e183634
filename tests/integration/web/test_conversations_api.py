"""Conversations through a whole gateway: their objects and items, responses that continue them, their bounds."""

import asyncio
import json

import pytest

from gateway.database import conversation_store
from gateway.database.conversation_store import (
    ConversationFull,
    ConversationNotFound,
    ConversationStore,
    ItemInvalid,
    StoredConversation,
)
from gateway.database.database import Database, DatabaseDown
from tests.fakes.clock import FakeClock
from tests.fakes.scripted_worker import ScriptedWorker

HELLO = {"role": "user", "content": "hello"}


@pytest.fixture
def gateway(gateway):
    """One that has a database."""

    def start(*workers, **settings):
        return gateway(*workers, **{"database.url": "sqlite:///radixgate.db", **settings})

    return start


async def call(running, method, path, body=None, *, tenant="acme"):
    url, headers = f"{running.url}/v1/{path}", running.headers(tenant)
    async with running.http.request(method, url, json=body, headers=headers) as response:
        return response.status, await response.json()


async def made(running, **body):
    status, conversation = await call(running, "POST", "conversations", body)
    assert status == 200, conversation
    return conversation["id"]


async def texts(running, identity):
    _, listed = await call(running, "GET", f"conversations/{identity}/items?order=asc")
    return [item["content"][0]["text"] for item in listed["data"]]


async def test_a_response_gets_the_items_so_far_and_adds_its_own_and_its_answer(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = await made(running, items=[HELLO])
        asked = {"model": "m", "conversation": {"id": identity}}
        _, first = await call(running, "POST", "responses", {**asked, "input": "one"})
        await call(running, "POST", "responses", {**asked, "input": "two"})
        await call(running, "POST", "responses", {**asked, "input": "not stored", "store": False})
        assert await texts(running, identity) == ["hello", "one", "w0 w1 w2 w3 ", "two", "w0 w1 w2 w3 "]
        assert first["conversation"] == {"id": identity}
        assert (await call(running, "GET", f"responses/{first['id']}"))[1] == first
    assert [message["role"] for message in worker.seen[-1].body["messages"]] == [
        *("user", "user", "assistant", "user", "assistant", "user")
    ]


async def test_a_background_response_adds_its_answer_too(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = await made(running)
        body = {"model": "m", "input": "one", "conversation": identity, "background": True}
        await call(running, "POST", "responses", body)
        await running.until(lambda: running.idle)
        assert await texts(running, identity) == ["one", "w0 w1 w2 w3 "]


async def test_a_failed_response_leaves_its_conversation_as_it_was(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = await made(running, items=[HELLO])
        worker.then(status=500)
        status, _ = await call(
            running, "POST", "responses", {"model": "m", "input": "x", "conversation": identity}
        )
        assert status == 502
        assert await texts(running, identity) == ["hello"]


async def test_an_answer_whose_conversation_was_deleted_meanwhile_is_not_lost(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = await made(running)
        store = running.here.gateway.records.conversations
        items = store.items

        async def read_and_delete(tenant, conversation):
            found = await items(tenant, conversation)
            await store.delete(tenant, conversation)
            return found

        store.items = read_and_delete
        body = {"model": "m", "input": "x", "conversation": identity}
        status, response = await call(running, "POST", "responses", body)
    assert (status, response["conversation"]) == (200, None)
    assert response["output"][0]["content"][0]["text"] == "w0 w1 w2 w3 "


async def test_a_conversation_is_visible_to_its_tenant_only(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = await made(running, items=[HELLO])
        _, listed = await call(running, "GET", f"conversations/{identity}/items")
        one, item = f"conversations/{identity}", listed["data"][0]["id"]
        for method, path, body in (
            ("GET", one, None),
            ("POST", one, {"metadata": {"a": "b"}}),
            ("DELETE", one, None),
            ("POST", f"{one}/items", {"items": [HELLO]}),
            ("GET", f"{one}/items", None),
            ("GET", f"{one}/items/{item}", None),
            ("DELETE", f"{one}/items/{item}", None),
            ("POST", "responses", {"model": "m", "input": "x", "conversation": identity}),
        ):
            status, answer = await call(running, method, path, body, tenant="globex")
            assert (status, answer["error"]["code"]) == (404, "not_found"), (method, path)
        async with running.http.get(f"{running.url}/v1/{one}") as response:
            assert response.status == 401
        assert await texts(running, identity) == ["hello"]
    assert worker.seen == []


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([HELLO, {"type": "computer_call"}], "items[1].type"),
        ([{"role": "user"}], "items[0]"),
        ([{"role": "nobody", "content": "x"}], "items[0]"),
        ([{"type": "item_reference", "id": "msg_1"}], "items[0].type"),
        ([{**HELLO, "id": "x" * 129}], "items"),
        ([{**HELLO, "id": "a\u0000"}], "items"),
        ([{**HELLO, "id": "a"}, {**HELLO, "id": "a"}], "items"),
        ([HELLO] * 21, "items"),
        (["x"], "items[0]"),
        ([{"type": "compaction", "encrypted_content": "of another server"}], "items[0].encrypted_content"),
    ],
)
async def test_items_that_no_request_could_continue_from_are_refused(gateway, items, param):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        for path in ("conversations", f"conversations/{await made(running)}/items"):
            status, answer = await call(running, "POST", path, {"items": items})
            assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "metadata", [{"a": 1}, {"a" * 65: "b"}, {"a": "b" * 513}, dict.fromkeys("abcdefghijklmnopq", "x")]
)
async def test_metadata_has_the_bounds_of_the_real_api(gateway, metadata):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        status, answer = await call(running, "POST", "conversations", {"metadata": metadata})
        assert (status, answer["error"]["param"].partition(".")[0].partition("[")[0]) == (400, "metadata")


async def test_an_item_that_the_conversation_has_is_refused_before_any_worker_gets_a_call(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = await made(running, items=[{**HELLO, "id": "msg_a"}])
        body = {"model": "m", "input": [{**HELLO, "id": "msg_a"}], "conversation": identity}
        status, answer = await call(running, "POST", "responses", body)
        assert (status, answer["error"]["param"]) == (400, "input[0]")
        assert "Duplicate item" in answer["error"]["message"]
    assert worker.seen == []


async def test_a_tool_of_an_mcp_server_is_never_called_here(gateway):
    tool = {"type": "mcp", "server_label": "files", "server_url": "https://mcp.example.com"}
    async with ScriptedWorker() as worker, gateway(worker) as running:
        body = {"model": "m", "input": "x", "tools": [tool], "tool_choice": tool | {"name": "read"}}
        status, answer = await call(running, "POST", "responses", body)
    assert (status, answer["error"]["param"]) == (400, "tool_choice")
    assert "calls no MCP servers" in answer["error"]["message"]


async def test_a_gateway_that_stores_nothing_refuses_with_that_reason(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"responses.kept_seconds": 0}) as running:
        status, answer = await call(running, "POST", "conversations", {})
        assert (status, answer["error"]["code"]) == (404, "not_found")
        body = {"model": "m", "input": "x", "conversation": "conv_1"}
        status, answer = await call(running, "POST", "responses", body)
        assert (status, answer["error"]["param"]) == (400, "conversation")


async def test_a_database_that_is_away_is_no_missing_conversation(gateway, monkeypatch):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = await made(running)

        async def away(*_):
            raise DatabaseDown("gone")

        for name in ("get", "items"):
            monkeypatch.setattr(running.here.gateway.records.conversations, name, away)
        for method, path, body in (
            ("GET", f"conversations/{identity}", None),
            ("POST", "responses", {"model": "m", "input": "x", "conversation": identity}),
        ):
            status, answer = await call(running, method, path, body)
            assert (status, answer["error"]["code"]) == (503, "responses_unavailable")


async def test_a_compaction_is_the_users_messages_and_a_summary_that_later_requests_continue_from(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        said = [HELLO, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "go on"}]
        status, short = await call(running, "POST", "responses/compact", {"model": "m", "input": said})
        assert (status, short["object"]) == (200, "response.compaction")
        assert [item["type"] for item in short["output"]] == ["message", "message", "compaction"]
        assert len(worker.seen[0].body["messages"]) == 4
        body = {"model": "m", "input": [*short["output"], {"role": "user", "content": "now"}]}
        status, _ = await call(running, "POST", "responses", body)
        assert status == 200
        assert (await call(running, "GET", f"responses/{short['id']}"))[0] == 404
        status, answer = await call(running, "POST", "responses/compact", {"model": "m"})
        assert (status, answer["error"]["param"]) == (400, "input")
    messages = worker.seen[1].body["messages"]
    summary = next(message["content"] for message in messages if "Summary" in json.dumps(message["content"]))
    assert "w0 w1 w2 w3 " in json.dumps(summary)


@pytest.fixture
async def database(tables_url, tmp_path):
    opened = Database(tables_url, tmp_path)
    yield opened
    await opened.close()


def conversation(identity, tenant="t"):
    return StoredConversation(id=identity, tenant=tenant, created=0.0, metadata={})


def item(identity, text="x"):
    return {"id": identity, "type": "message", "role": "user", "content": text}


async def test_a_store_drops_what_was_changed_longest_ago_and_what_is_too_old(database, monkeypatch):
    clock = FakeClock()
    store = ConversationStore(database, kept_seconds=100, tenant_conversations_max=2, wall=lambda: clock.now)
    for name in ("a", "b"):
        await store.create(conversation(name), [item("one")])
        await store.create(conversation(f"{name} of u", tenant="u"), [])
        clock.now += 1
    await store.append("t", "a", [item("two")])
    clock.now += 1
    await store.create(conversation("c"), [])
    assert [await store.get("t", name) is not None for name in "abc"] == [True, False, True]
    assert await store.get("u", "a of u") is not None
    clock.now += 99
    assert [await store.get("t", name) is not None for name in "abc"] == [False, False, True]
    assert await store.sweep() == 3
    monkeypatch.setattr(conversation_store, "TENANT_BYTES_MAX", 500)
    await store.create(conversation("large"), [item("x", "x" * 250)])
    assert await store.get("t", "c") is not None
    await store.append("t", "c", [item("x", "x" * 250)])
    assert await store.get("t", "large") is None


async def test_a_full_conversation_takes_only_the_answer_that_was_generated_for_it(database, monkeypatch):
    store = ConversationStore(database, kept_seconds=100, tenant_conversations_max=2)
    monkeypatch.setattr(conversation_store, "BYTES_MAX", 200)
    await store.create(conversation("a"), [item("one")])
    with pytest.raises(ConversationFull):
        await store.append("t", "a", [item("two", "x" * 200)])
    with pytest.raises(ConversationFull):
        await store.create(conversation("b"), [item("two", "x" * 200)])
    assert await store.get("t", "b") is None
    await store.append("t", "a", [item("two", "x" * 200)], beyond=True)
    assert [found["id"] for found in await store.items("t", "a")] == ["one", "two"]
    assert await store.delete_item("t", "a", "two")
    assert not await store.delete_item("t", "a", "two")
    await store.append("t", "a", [item("three")])


async def test_an_id_occurs_once_in_a_conversation_and_a_refused_call_adds_nothing(database):
    store = ConversationStore(database, kept_seconds=100, tenant_conversations_max=2)
    await store.create(conversation("a"), [item("one")])
    await store.create(conversation("b"), [item("one")])
    with pytest.raises(ItemInvalid):
        await store.append("t", "a", [item("two"), item("one")])
    assert [found["id"] for found in await store.items("t", "a")] == ["one"]
    with pytest.raises(ConversationNotFound):
        await store.append("u", "a", [item("two")])
    assert not await store.delete("u", "a")


async def test_items_of_calls_at_the_same_time_never_mix(database):
    store = ConversationStore(database, kept_seconds=100, tenant_conversations_max=2)
    await store.create(conversation("a"), [])
    pairs = [[item(f"{call} first"), item(f"{call} second")] for call in range(8)]
    await asyncio.gather(*(store.append("t", "a", pair) for pair in pairs))
    ids = [found["id"].split() for found in await store.items("t", "a")]
    assert len(ids) == 16
    assert all(first == [second[0], "first"] for first, second in zip(ids[::2], ids[1::2], strict=True))
