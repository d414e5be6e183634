"""Anthropic's message batches through whole gateways: as its public API has them, with our quotas and tenants."""

import asyncio
import json
import time

import pytest

from gateway.batches.output_lines import KEY_ENDED
from gateway.web.anthropic.batches import message_batch_object
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.batches import test_batches
from tests.integration.files.test_files_api import called, with_database

MESSAGES = [{"role": "user", "content": "hello"}]


def asked(custom_id, **params):
    return {
        "custom_id": custom_id,
        "params": {"model": "m", "max_tokens": 8, "messages": MESSAGES, **params},
    }


async def call(running, path="", *, method="GET", tenant="acme", prefix="/v1", **more):
    url = f"{running.url}{prefix}/messages/batches{path}"
    headers = running.headers(tenant) if running.keys else {}
    async with running.http.request(method, url, headers=headers, **more) as answer:
        body = await answer.read()
        return answer.status, json.loads(body) if answer.content_type == "application/json" else body


async def create(running, *requests, **more):
    status, batch = await call(running, method="POST", json={"requests": list(requests)}, **more)
    assert status == 200, batch
    return batch


async def ended(running, batch, seconds=60.0):
    until = time.monotonic() + seconds
    while True:
        status, found = await call(running, f"/{batch['id']}")
        assert status == 200
        if found["processing_status"] == "ended":
            return found
        assert time.monotonic() < until, found
        await asyncio.sleep(0.02)


async def results(running, batch, tenant="acme"):
    status, content = await call(running, f"/{batch['id']}/results", tenant=tenant)
    assert status == 200, content
    return {line["custom_id"]: line["result"] for line in map(json.loads, content.splitlines())}


@pytest.fixture
async def running(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        running.worker = worker
        yield running


async def test_every_request_has_a_result_as_a_client_would_have_got_it(running):
    batch = await create(
        running,
        asked("good"),
        asked("unknown", model="none"),
        asked("broken", messages="hello", max_tokens=-1),
        asked("streamed", stream=True),
        {"custom_id": "nothing", "params": {}},
    )
    assert batch["id"].startswith("msgbatch_")
    assert (batch["type"], batch["processing_status"]) == ("message_batch", "in_progress")
    nothing = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    assert batch["request_counts"] == {**nothing, "processing": 5}
    for name in ("ended_at", "archived_at", "cancel_initiated_at", "results_url"):
        assert batch[name] is None
    done = await ended(running, batch)
    assert done["request_counts"] == {**nothing, "succeeded": 1, "errored": 4}
    assert done["created_at"] <= done["ended_at"] < done["expires_at"]
    assert done["results_url"] == f"/v1/messages/batches/{batch['id']}/results"
    told = await results(running, batch)
    assert set(told) == {"good", "unknown", "broken", "streamed", "nothing"}
    message = told["good"]["message"]
    assert (told["good"]["type"], message["type"], message["model"]) == ("succeeded", "message", "m")
    assert message["content"] == [{"type": "text", "text": "w0 w1 w2 w3 "}]
    assert message["usage"]["output_tokens"] == 4
    kinds = {name: result["error"]["error"]["type"] for name, result in told.items() if name != "good"}
    assert kinds == {
        "unknown": "not_found_error",
        **dict.fromkeys(("broken", "streamed", "nothing"), "invalid_request_error"),
    }
    for name in kinds:
        assert (told[name]["type"], told[name]["error"]["type"]) == ("errored", "error")
        assert told[name]["error"]["request_id"].startswith("req-")
    await running.until(lambda: running.idle, 60)
    assert len(running.worker.seen) == 1


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"{no json", "JSON"),
        (b"{}", "requests"),
        (b'{"requests": []}', "requests"),
        (b'{"requests": {}}', "requests"),
        (b'{"requests": ["a"]}', "requests"),
        (b'{"requests": [-{"custom_id": "a", "params": {}}]}', "JSON"),
        (b'{"requests": [{"custom_id": "a", "params": {}}.0]}', "JSON"),
        (b'{"requests": [{"custom_id": "a", "params": {}}, ""]}', "requests"),
        (b'{"requests": [{"custom_id": "a"}]}', "requests.0"),
        (b'{"requests": [{"custom_id": "a", "params": []}]}', "requests.0.params"),
        (b'{"requests": [{"custom_id": "a b", "params": {}}]}', "requests.0"),
        (b'{"requests": [{"custom_id": "%b", "params": {}}]}' % (b"a" * 65), "requests.0"),
        (b'{"requests": [{"params": {}}]}', "requests.0"),
        (
            b'{"requests": [%b]}' % b",".join([b'{"custom_id": "a", "params": {}}'] * 2),
            "requests.1.custom_id",
        ),
    ],
    ids=[
        *(
            "no json",
            "nothing",
            "empty",
            "no list",
            "no objects",
            "a sign",
            "a fraction",
            "a text",
            "no params",
            "params",
            "an id",
            "a long id",
        ),
        *("no id", "twice"),
    ],
)
async def test_what_cannot_be_a_batch_is_refused_at_once_and_leaves_nothing(running, body, what):
    status, refused = await call(running, method="POST", data=body)
    assert (status, refused["type"], refused["error"]["type"]) == (400, "error", "invalid_request_error")
    assert what in refused["error"]["message"]
    assert (await call(running))[1]["data"] == []
    assert await running.here.gateway.records.tenant_files.store.bytes_held("acme") == 0


async def test_a_batch_has_so_many_requests_and_a_tenant_so_many_batches(gateway):
    settings = with_database(**{"batches.rows_max": 2, "batches.tenant_unfinished_max": 1})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        three = {"requests": [asked("a"), asked("b"), asked("c")]}
        status, refused = await call(running, method="POST", json=three)
        assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
        worker.then(until=asyncio.Event())
        await create(running, asked("a"), asked("b"))
        held = await running.here.gateway.records.tenant_files.store.bytes_held("acme")
        status, refused = await call(running, method="POST", json={"requests": [asked("a")]})
        assert (status, refused["error"]["type"]) == (429, "rate_limit_error")
        await create(running, asked("a"), tenant="globex")
        assert await running.here.gateway.records.tenant_files.store.bytes_held("acme") == held


async def test_a_body_of_many_bytes_is_refused_where_files_may_not_have_so_many(gateway):
    settings = with_database(**{"files.file_bytes_max": 2000, "files.tenant_bytes_max": 3000})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        long = {"requests": [asked("a", system="x" * 3000)]}
        status, refused = await call(running, method="POST", json=long)
        assert (status, refused["error"]["type"]) == (413, "request_too_large")
        worker.then(until=asyncio.Event())
        half = asked("a", system="x" * 1500)
        await create(running, half)
        status, refused = await call(running, method="POST", json={"requests": [half]})
        assert (status, refused["error"]["type"]) == (429, "rate_limit_error")


async def test_a_batch_belongs_to_its_tenant_alone(running):
    batch = await create(running, asked("a"))
    await ended(running, batch)
    for path, method in (("", "GET"), ("/cancel", "POST"), ("/results", "GET"), ("", "DELETE")):
        status, body = await call(running, f"/{batch['id']}{path}", method=method, tenant="globex")
        assert (status, body["error"]["type"]) == (404, "not_found_error")
    assert (await call(running, tenant="globex"))[1]["data"] == []
    async with running.http.get(f"{running.url}/v1/messages/batches") as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (401, "authentication_error")
    assert set(await results(running, batch)) == {"a"}


async def test_neither_api_lists_the_batches_of_the_other_or_their_files(running):
    mine = await create(running, asked("a"))
    await ended(running, mine)
    theirs = await test_batches.create(running, test_batches.line("a"))
    assert [batch["id"] for batch in (await call(running))[1]["data"]] == [mine["id"]]
    listed = (await test_batches.post(running, "", method="GET"))[1]["data"]
    assert [batch["id"] for batch in listed] == [theirs["id"]]
    assert (await call(running, f"/{theirs['id']}"))[0] == 404
    assert (await test_batches.post(running, f"/{mine['id']}", method="GET"))[0] == 404
    assert (await call(running, f"?after_id={theirs['id']}"))[0] == 400
    stored = await running.here.gateway.records.batches.get("acme", mine["id"])
    assert [file["id"] for file in (await called(running, ""))[1]["data"]] == [theirs["input_file_id"]]
    for identity in (stored.input_file, stored.output_file):
        assert (await called(running, f"/{identity}"))[0] == 404
        assert (await called(running, f"/{identity}/content"))[0] == 404
        assert (await called(running, f"/{identity}", method="DELETE"))[0] == 404


async def test_lists_come_in_pages_newest_first_in_both_directions(running):
    made = [(await create(running, asked("a")))["id"] for _ in range(5)][::-1]

    async def page(query):
        status, found = await call(running, query)
        assert status == 200, found
        ids = [batch["id"] for batch in found["data"]]
        assert (found["first_id"], found["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
        return ids, found["has_more"]

    assert await page("") == (made, False)
    assert await page("?limit=2") == (made[:2], True)
    assert await page(f"?limit=2&after_id={made[1]}") == (made[2:4], True)
    assert await page(f"?after_id={made[3]}") == (made[4:], False)
    assert await page(f"?limit=2&before_id={made[4]}") == (made[2:4], True)
    assert await page(f"?before_id={made[2]}") == (made[:2], False)
    assert await page(f"?before_id={made[0]}") == ([], False)
    for query in ("?limit=0", "?limit=1001", "?after_id=none", f"?after_id={made[0]}&before_id={made[1]}"):
        status, refused = await call(running, query)
        assert (status, refused["error"]["type"]) == (400, "invalid_request_error")


async def test_cancelling_aborts_what_runs_and_reports_the_rest_as_canceled(gateway):
    settings = with_database(**{"batches.running_rows_max": 4})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        counts = running.here.gateway.records.batch_counts
        batch = await create(running, *(asked(str(at)) for at in range(50)))
        await running.until(lambda: counts.done >= 5, 60)
        worker.then(until=asyncio.Event())
        await running.until(lambda: sum(seen.ended == "running" for seen in worker.seen) == 4, 60)
        assert (await call(running, f"/{batch['id']}", method="DELETE"))[0] == 400
        assert (await call(running, f"/{batch['id']}/results"))[0] == 404
        for _ in range(2):
            status, canceling = await call(running, f"/{batch['id']}/cancel", method="POST")
            assert (status, canceling["processing_status"]) == (200, "canceling")
            assert canceling["cancel_initiated_at"] is not None
            assert canceling["request_counts"]["processing"] == 50
        done = await ended(running, batch)
        await running.until(lambda: running.idle and all(seen.ended != "running" for seen in worker.seen), 60)
        told = await results(running, batch)
        status, refused = await call(running, f"/{batch['id']}/cancel", method="POST")
        assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
    finished = sum(seen.ended == "finished" for seen in worker.seen)
    assert done["request_counts"] == {
        "processing": 0,
        "succeeded": finished,
        "errored": 0,
        "canceled": 50 - finished,
        "expired": 0,
    }
    assert sorted(result["type"] for result in told.values()) == sorted(
        ["succeeded"] * finished + ["canceled"] * (50 - finished)
    )


async def test_a_batch_past_its_deadline_reports_every_remaining_request_as_expired(running):
    running.worker.then(until=asyncio.Event())
    batch = await create(running, asked("a"), asked("b"))
    await running.until(lambda: len(running.worker.seen) == 2, 60)
    (run,) = running.here.batch_claimer._runs.values()
    run._end_as("expired")  # as its timer does
    done = await ended(running, batch)
    assert done["request_counts"]["expired"] == 2
    assert await results(running, batch) == {"a": {"type": "expired"}, "b": {"type": "expired"}}


async def stopped_half_way(gateway, worker, **settings):
    """A batch of thirty requests whose gateway has stopped, and how many of them have their results."""
    async with gateway(worker, **settings) as running:
        counts = running.here.gateway.records.batch_counts
        batch = await create(running, *(asked(str(at)) for at in range(30)))
        await running.until(lambda: counts.done >= 5, 60)
        worker.then(until=asyncio.Event())
        await running.until(lambda: any(seen.ended == "running" for seen in worker.seen), 60)
    worker.then(until=None)
    return batch, sum(seen.ended == "finished" for seen in worker.seen)


async def test_another_gateway_goes_on_where_one_has_stopped(gateway):
    settings = with_database(**{"batches.running_rows_max": 4})
    async with ScriptedWorker() as worker:
        batch, finished = await stopped_half_way(gateway, worker, tenants={}, **settings)
        assert 5 <= finished < 30
        asked_before = len(worker.seen)
        async with gateway(worker, tenants={}, **settings) as running:
            done = await ended(running, batch)
            told = await results(running, batch)
    assert done["request_counts"]["succeeded"] == 30
    assert {result["type"] for result in told.values()} == {"succeeded"}
    assert len(worker.seen) - asked_before == 30 - finished


async def test_a_key_that_is_ended_ends_its_batches_with_an_error_for_each_request_left(gateway):
    settings = with_database(**{"batches.running_rows_max": 4})
    async with ScriptedWorker() as worker:
        batch, finished = await stopped_half_way(gateway, worker, **settings)
        # Each gateway of these tests has keys of its own: the one that made it is unknown to the next.
        async with gateway(worker, **settings) as running:
            done = await ended(running, batch)
            told = await results(running, batch)
    assert (done["request_counts"]["succeeded"], done["request_counts"]["errored"]) == (
        finished,
        30 - finished,
    )
    errors = [result["error"]["error"] for result in told.values() if result["type"] == "errored"]
    assert len(errors) == 30 - finished
    assert {(error["type"], error["message"]) for error in errors} == {("permission_error", KEY_ENDED)}


async def test_requests_have_the_tenants_quota_and_wait_for_it(gateway):
    limits = [{"requests": 2, "per": "second"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **with_database()) as running:
        done = await ended(running, await create(running, *(asked(str(at)) for at in range(4))))
        assert running.here.gateway.records.batch_counts.retried > 0
    assert (done["request_counts"]["succeeded"], len(worker.seen)) == (4, 4)


async def test_a_deleted_batch_is_gone_with_its_files(running):
    batch = await create(running, asked("a"))
    await ended(running, batch)
    tenant_files = running.here.gateway.records.tenant_files
    assert await tenant_files.store.bytes_held("acme") > 0
    status, said = await call(running, f"/{batch['id']}", method="DELETE")
    assert (status, said) == (200, {"id": batch["id"], "type": "message_batch_deleted"})
    for path in ("", "/results"):
        assert (await call(running, f"/{batch['id']}{path}"))[0] == 404
    assert (await call(running, f"/{batch['id']}", method="DELETE"))[0] == 404
    assert await tenant_files.store.bytes_held("acme") == 0
    assert await tenant_files.sweep() == 2


async def test_a_batch_that_is_forgotten_takes_its_files_with_it(running):
    batch = await create(running, asked("a"))
    await ended(running, batch)
    theirs = await test_batches.create(running, test_batches.line("a"))
    await test_batches.come_to(running, theirs, "completed")
    records = running.here.gateway.records
    assert await records.batches.sweep(-5.0) == 2
    assert (await call(running, f"/{batch['id']}"))[0] == 404
    # Those that can be seen stay for as long as files do.
    kept = {file["id"]: file["bytes"] for file in (await called(running, ""))[1]["data"]}
    assert len(kept) == 2
    assert await records.tenant_files.store.bytes_held("acme") == sum(kept.values())


async def test_results_that_are_too_old_are_archived(running):
    batch = await create(running, asked("a"))
    await ended(running, batch)
    records = running.here.gateway.records
    later = time.time() + 29 * 86400 + 60
    stored = await records.batches.get("acme", batch["id"])
    said = message_batch_object(stored, later)
    assert said["archived_at"] is not None
    assert (said["processing_status"], said["results_url"]) == ("ended", None)
    records.tenant_files.store._wall = lambda: later
    status, refused = await call(running, f"/{batch['id']}/results")
    assert (status, refused["error"]["type"]) == (404, "not_found_error")


async def test_the_path_without_v1_works_too_and_other_methods_do_not(running):
    batch = await create(running, asked("a"), prefix="")
    status, found = await call(running, f"/{batch['id']}", prefix="")
    assert (status, found["id"]) == (200, batch["id"])
    status, refused = await call(running, method="PUT")
    assert (status, refused["type"]) == (405, "error")


async def test_a_client_that_leaves_half_way_leaves_nothing(running):
    _, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
    key = running.keys["acme"].text
    writer.write(
        b"POST /v1/messages/batches HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
        b"x-api-key: %b\r\n\r\n" % key.encode() + b'{"requests": [' + json.dumps(asked("a")).encode()
    )
    await writer.drain()
    tenant_files = running.here.gateway.records.tenant_files
    await running.until(lambda: tenant_files._arriving.get("acme"), 60)
    writer.close()
    await running.until(lambda: not tenant_files._arriving, 60)
    assert (await call(running))[1]["data"] == []
