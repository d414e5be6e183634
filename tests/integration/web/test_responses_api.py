"""The Responses API through a whole gateway: requests to workers, stored responses, refusals."""

import json

import pytest

from gateway.database.database import Database, DatabaseDown
from gateway.database.response_store import ResponseStore, StoredResponse
from gateway.web.responses import references
from tests.fakes.clock import FakeClock
from tests.fakes.scripted_worker import ScriptedWorker

LIMITS = [{"total_tokens": 1000, "per": "day"}]


@pytest.fixture
def gateway(gateway):
    """One that has a database."""

    def start(*workers, **settings):
        return gateway(*workers, **{"database.url": "sqlite:///radixgate.db", **settings})

    return start


def post(running, path="/v1/responses", *, tenant="acme", **more):
    body = {"model": "m", "input": "hello", **more}
    return running.http.post(running.url + path, json=body, headers=running.headers(tenant))


async def created(running, **more):
    async with post(running, **more) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def got(running, path, *, method="GET", tenant="acme"):
    url = f"{running.url}/v1/responses/{path}"
    async with running.http.request(method, url, headers=running.headers(tenant)) as response:
        return response.status, await response.json()


def events(text):
    found = [part.split("\n") for part in text.split("\n\n")[:-1]]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in found]


async def test_a_conversation_goes_on_at_any_worker_and_is_charged_like_a_chat(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other, limits=LIMITS, **{"routing.policy": "round_robin"}) as running:
            first = await created(running, instructions="Be brief.", top_k=3)
            second = await created(running, input="go on", previous_response_id=first["id"])
            await running.until(lambda: running.idle)
            async with running.chat(max_tokens=8) as chat:
                left = int(chat.headers["x-ratelimit-remaining-tokens"])
        asked = [seen.body for seen in (*one.seen, *other.seen)]
    begun = next(body for body in asked if "top_k" in body)
    assert [m["role"] for m in begun["messages"]] == ["system", "user"]
    gone_on = next(body for body in asked if body["messages"][-1]["content"] == "go on")
    # Instructions hold for one answer only.
    assert [m["role"] for m in gone_on["messages"]] == ["user", "assistant", "user"]
    assert gone_on["messages"][1]["content"] == "w0 w1 w2 w3 "
    assert (second["status"], second["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert second["usage"]["total_tokens"] == 14
    assert 1000 - 2 * 14 - left in range(8, 40)


async def test_a_stream_has_numbered_events_and_is_stored_before_its_last_event(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with post(running, stream=True) as response:
            found = events(await response.text())
        last = found[-1][1]["response"]
        assert await got(running, last["id"]) == (200, last)
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert [name.removeprefix("response.") for name, _ in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 4,
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert all(name == data["type"] for name, data in found)
    assert last["output"][0]["content"][0]["text"] == "w0 w1 w2 w3 "


async def test_a_stream_that_breaks_ends_as_failed_and_leaves_nothing(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        worker.then(break_after=2)
        async with post(running, stream=True) as response:
            found = events(await response.text())
        assert (await got(running, found[0][1]["response"]["id"]))[0] == 404
    assert found[-1][0] == "response.failed"
    assert found[-1][1]["response"]["error"]["code"] == "server_error"


async def test_a_response_belongs_to_its_tenant_alone(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = (await created(running))["id"]
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            status, body = await got(running, identity + path, method=method, tenant="globex")
            assert (status, body["error"]["code"]) == (404, "not_found")
        async with post(running, tenant="globex", previous_response_id=identity) as response:
            refusal = (await response.json())["error"]
            assert (response.status, refusal["param"]) == (400, "previous_response_id")
            assert refusal["code"] == "previous_response_not_found"
        async with running.http.get(f"{running.url}/v1/responses/{identity}") as response:
            assert response.status == 401
        assert (await got(running, identity))[0] == 200


async def test_what_is_deleted_or_not_to_be_stored_is_not_there(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        first = await created(running)
        second = await created(running, previous_response_id=first["id"])
        assert await got(running, first["id"], method="DELETE") == (
            200,
            {"id": first["id"], "object": "response", "deleted": True},
        )
        assert (await got(running, first["id"]))[0] == 404
        # Each has its whole conversation: one that came before is not needed.
        await created(running, previous_response_id=second["id"])
        assert len(worker.seen[-1].body["messages"]) == 5
        unstored = await created(running, store=False)
        assert unstored["store"] is False
        assert (await got(running, unstored["id"]))[0] == 404


async def test_nothing_is_stored_where_nothing_is_to_be_kept_or_there_is_no_database(gateway):
    for settings in ({"responses.kept_seconds": 0}, {"database.url": "none"}):
        async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
            answer = await created(running)
            assert answer["store"] is False
            assert (await got(running, answer["id"]))[0] == 404


async def test_input_items_are_the_requests_own_by_page(gateway):
    turns = [{"role": "user", "content": f"number {at}"} for at in range(5)]
    async with ScriptedWorker() as worker, gateway(worker) as running:
        first = await created(running, input="before")
        identity = (await created(running, input=turns, previous_response_id=first["id"]))["id"]
        _, newest = await got(running, f"{identity}/input_items?limit=2")
        _, rest = await got(running, f"{identity}/input_items?order=asc&after={newest['data'][1]['id']}")
        for query in ("limit=0", "limit=x", "order=up", "after=none"):
            assert (await got(running, f"{identity}/input_items?{query}"))[0] == 400
    texts = [[part["text"] for part in item["content"]] for item in (*newest["data"], *rest["data"])]
    assert texts == [["number 4"], ["number 3"], ["number 4"]]
    assert (newest["has_more"], newest["last_id"]) == (True, newest["data"][1]["id"])
    assert rest["has_more"] is False


def named(*found):
    return [{"type": "item_reference", "id": item["id"]} for item in found]


async def test_items_of_earlier_answers_can_be_named_in_place_of_being_repeated(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        first = await created(running, input="one")
        _, listed = await got(running, f"{first['id']}/input_items")
        begun = [*named(*listed["data"], *first["output"]), {"role": "user", "content": "two"}]
        async with post(running, stream=True, input=begun) as response:
            second = events(await response.text())[-1][1]["response"]
        # The second has the whole conversation: one that came before is not needed.
        await got(running, first["id"], method="DELETE")
        await created(
            running, input=[*begun, *named(*second["output"]), {"role": "user", "content": "three"}]
        )
        asked = [(turn["role"], turn["content"]) for turn in worker.seen[-1].body["messages"]]
        said = ("assistant", "w0 w1 w2 w3 ")
        assert asked == [("user", "one"), said, ("user", "two"), said, ("user", "three")]
        unstored = await created(running, store=False)
        for tenant, item in (
            ("globex", second["output"][0]),
            ("acme", unstored["output"][0]),
            ("acme", first["output"][0]),
            ("acme", {"id": "msg_1"}),
        ):
            async with post(running, tenant=tenant, input=named(item)) as response:
                refusal = (await response.json())["error"]
                assert (response.status, refusal["param"]) == (404, "input[0]")


async def test_a_request_cannot_have_any_number_of_conversations_read(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        found = [(await created(running))["output"][0] for _ in range(references.RESPONSES_MAX + 1)]
        async with post(running, input=named(*found)) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "input")
        await created(running, input=named(*found[1:]))


async def test_only_what_runs_in_the_background_could_be_cancelled(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = (await created(running))["id"]
        assert (await got(running, f"{identity}/cancel", method="POST"))[0] == 400


async def test_input_tokens_are_counted_without_asking_a_worker(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with post(running, "/v1/responses/input_tokens") as response:
            body = await response.json()
        assert (body["object"], body["input_tokens"] > 0) == ("response.input_tokens", True)
        assert not worker.seen


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": [{"type": "item_reference"}]}, "input[0].type"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0]"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0]"),
        ({"input": [7]}, "input[0]"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input"),
        ({"tools": [{"type": "telepathy"}]}, "tools[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": 7}, "conversation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"model": None}, "model"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_its_field(gateway, more, param):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with post(running, **more) as response:
            refusal = (await response.json())["error"]
        assert not worker.seen
    assert (response.status, refusal["code"], refusal["param"]) == (400, "invalid_request", param)


def kept(identity, tenant="t", size=10):
    return StoredResponse(
        id=identity,
        tenant=tenant,
        created=0.0,
        response=b'{"output":[]}',
        context=b"[" + b" " * size + b"]",
        own_from=0,
    )


@pytest.fixture
async def database(tables_url, tmp_path):
    opened = Database(tables_url, tmp_path)
    yield opened
    await opened.close()


async def test_a_store_drops_the_oldest_of_a_tenant_and_what_is_too_old(database, monkeypatch):
    clock = FakeClock()
    store = ResponseStore(database, kept_seconds=100, tenant_responses_max=2, wall=lambda: clock.now)
    for at in range(3):
        await store.put(kept(f"r{at}"))
        await store.put(kept(f"other{at}", tenant="u"))
        clock.now += 1
    assert [await store.get("t", f"r{at}") is not None for at in range(3)] == [False, True, True]
    assert await store.get("u", "r2") is None
    assert not await store.delete("u", "r2")
    clock.now += 98
    assert [await store.get("t", f"r{at}") is not None for at in range(3)] == [False, False, True]
    assert await store.sweep() == 2
    monkeypatch.setattr("gateway.database.response_store.TENANT_BYTES_MAX", 100)
    await store.put(kept("large", size=200))
    assert await store.get("t", "r2") is None
    assert (await store.get("t", "large")).size > 100


async def test_a_database_that_is_away_is_no_missing_response_and_loses_no_answer(
    gateway, tmp_path, monkeypatch
):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        identity = (await created(running))["id"]

        async def away(*_):
            raise DatabaseDown("gone")

        monkeypatch.setattr(running.here.gateway.records.responses, "get", away)
        monkeypatch.setattr(running.here.gateway.records.responses, "put", away)
        status, body = await got(running, identity)
        assert (status, body["error"]["code"]) == (503, "responses_unavailable")
        async with post(running, previous_response_id=identity) as response:
            assert response.status == 503
        answer = await created(running)
        assert (answer["store"], answer["status"]) == (False, "incomplete")
