"""Batches through whole gateways: every row has one result, whatever happens to gateways and workers."""

import asyncio
import json
import threading
import time
from dataclasses import replace

import pytest

from gateway.batches import retry_schedule
from gateway.database.batch_store import BatchStore, LeaseLost, RowResult
from gateway.database.database import Database
from gateway.files.tenant_files import FileLabel
from gateway.web.bodies.body_limits import CONTAINERS_MAX
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.files.test_files_api import called, upload, with_database

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id, *, url=CHAT, model="m", method="POST", **more):
    body = {"model": model, "messages": [{"role": "user", "content": f"row {custom_id}"}], **more}
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def jsonl(*lines):
    return b"".join(
        (text if isinstance(text, bytes) else json.dumps(text).encode()) + b"\n" for text in lines
    )


async def post(running, path, body=None, *, tenant="acme", method="POST"):
    url, headers = f"{running.url}/v1/batches{path}", running.headers(tenant)
    async with running.http.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def create(running, *lines, endpoint=CHAT, tenant="acme", window="24h", **more):
    status, file = await upload(running, jsonl(*lines), purpose="batch", tenant=tenant)
    assert status == 200, file
    body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": window, **more}
    status, batch = await post(running, "", body, tenant=tenant)
    assert status == 200, batch
    return batch


async def show(running, batch, tenant="acme"):
    status, found = await post(running, f"/{batch['id']}", method="GET", tenant=tenant)
    assert status == 200
    return found


async def come_to(running, batch, *statuses, seconds=60.0):
    until = time.monotonic() + seconds
    while (found := await show(running, batch))["status"] not in statuses:
        assert time.monotonic() < until, found
        await asyncio.sleep(0.02)
    return found


async def lines_of(running, identity):
    if identity is None:
        return []
    status, content = await called(running, f"/{identity}/content")
    assert status == 200
    return [json.loads(text) for text in content.decode().splitlines()]


async def test_every_row_is_answered_as_a_client_would_be(gateway):
    rows = [line("a"), line("b", model="unknown"), line("c", n="x"), line("d"), line("e", stream=True)]
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        batch = await create(running, *rows, metadata={"for": "us"})
        assert (batch["status"], batch["metadata"], batch["request_counts"]["total"]) == (
            *("validating", {"for": "us"}),
            0,
        )
        ended = await come_to(running, batch, *ENDED)
        assert ended["status"] == "completed"
        assert ended["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
        order = [ended[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
        assert order == sorted(order)
        assert ended["failed_at"] is ended["expired_at"] is ended["cancelled_at"] is None
        good = await lines_of(running, ended["output_file_id"])
        bad = await lines_of(running, ended["error_file_id"])
        _, file = await called(running, f"/{ended['output_file_id']}")
        await running.until(lambda: running.idle, 60)
    assert (file["purpose"], file["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert {row["custom_id"] for row in good} == {"a", "d"}
    for row in good:
        assert (row["error"], row["response"]["status_code"]) == (None, 200)
        assert row["response"]["body"]["choices"][0]["message"]["content"] == "w0 w1 w2 w3 "
        assert row["response"]["request_id"].startswith("req-")
    told = {row["custom_id"]: row["response"] for row in bad}
    assert told["b"]["status_code"] == 404
    assert told["b"]["body"]["error"]["code"] == "model_not_found"
    assert (told["c"]["status_code"], told["e"]["status_code"]) == (400, 400)
    assert told["e"]["body"]["error"]["param"] == "stream"
    asked = sorted(seen.body["messages"][0]["content"] for seen in worker.seen)
    assert asked == ["row a", "row d"]


@pytest.mark.parametrize(
    ("lines", "code", "at"),
    [
        ((), "empty_file", None),
        ((line("a"), b"{no json"), "invalid_json_line", 2),
        ((b"", line("a"), line("a")), "duplicate_custom_id", 3),
        ((line("a", url="/v1/completions"),), "mismatched_url", 1),
        ((line("a", method="GET"),), "invalid_request", 1),
        ((line(""),), "invalid_custom_id", 1),
        (
            (b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": [1]}',),
            "invalid_request",
            1,
        ),
        ((line("a"), line("b"), line("c"), line("d")), "too_many_tasks", None),
    ],
    ids=["empty", "no json", "twice", "elsewhere", "a method", "no id", "no object", "too many"],
)
async def test_a_batch_of_an_invalid_file_fails_with_the_number_of_the_line(gateway, lines, code, at):
    settings = with_database(**{"batches.rows_max": 3})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        ended = await come_to(running, await create(running, *lines), *ENDED)
    assert ended["status"] == "failed"
    error = ended["errors"]["data"][-1]
    assert (error["code"], error["line"]) == (code, at)
    assert (ended["output_file_id"], worker.seen) == (None, [])


async def test_what_cannot_be_a_batch_is_refused_at_once(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        _, file = await upload(running, jsonl(line("a")), purpose="batch")
        _, other = await upload(running, jsonl(line("a")))
        right = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        for wrong, param in (
            ({"input_file_id": "file-none"}, "input_file_id"),
            ({"input_file_id": other["id"]}, "input_file_id"),
            ({"endpoint": "/v1/audio/speech"}, "endpoint"),
            ({"completion_window": "soon"}, "completion_window"),
            ({"completion_window": "8d"}, "completion_window"),
            ({"metadata": {"a": 1}}, "metadata[...]"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after"),
        ):
            status, body = await post(running, "", {**right, **wrong})
            assert (status, body["error"]["param"]) == (400, param)
        status, body = await post(running, "", right, tenant="globex")
        assert (status, body["error"]["param"]) == (400, "input_file_id")
        assert (await post(running, "", method="GET"))[1]["data"] == []


async def test_a_batch_belongs_to_its_tenant_alone(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        made = [await create(running, line("a")) for _ in range(3)]
        for path, method in (("", "GET"), ("/cancel", "POST")):
            status, body = await post(running, f"/{made[0]['id']}{path}", method=method, tenant="globex")
            assert (status, body["error"]["code"]) == (404, "not_found")
        assert (await post(running, "", method="GET", tenant="globex"))[1]["data"] == []
        _, page = await post(running, "?limit=2", method="GET")
        _, rest = await post(running, f"?after={page['last_id']}", method="GET")
        assert [b["id"] for b in (*page["data"], *rest["data"])] == [b["id"] for b in made[::-1]]
        assert (page["has_more"], rest["has_more"]) == (True, False)


async def test_other_endpoints_and_translated_ones_take_batches_too(gateway):
    worker = ScriptedWorker()
    vectors = {"object": "list", "data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    # A worker may lay its answers out for readers: a line of a file they have to be all the same.
    worker.others = {"/v1/embeddings": ("application/json", json.dumps(vectors, indent=2).encode())}
    rows = {
        "/v1/completions": {"model": "m", "prompt": "hello"},
        "/v1/embeddings": {"model": "m", "input": "hello"},
        "/v1/responses": {"model": "m", "input": "hello"},
    }
    async with worker, gateway(worker, **with_database()) as running:
        said = {}
        for url, body in rows.items():
            row = {"custom_id": "a", "method": "POST", "url": url, "body": body}
            ended = await come_to(running, await create(running, row, endpoint=url), *ENDED)
            (answer,) = await lines_of(running, ended["output_file_id"])
            said[url] = answer["response"]["body"]
        response = said["/v1/responses"]
        url = f"{running.url}/v1/responses/{response['id']}"
        async with running.http.get(url, headers=running.headers()) as answer:
            assert await answer.json() == response
    assert said["/v1/completions"]["choices"][0]["text"] == "w0 w1 w2 w3 "
    assert said["/v1/embeddings"] == vectors


async def test_rows_have_the_tenants_quota_and_wait_for_it(gateway):
    # Two at once, then one every half second: a client would get a 429.
    limits = [{"requests": 2, "per": "second"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **with_database()) as running:
        began = time.monotonic()
        ended = await come_to(running, await create(running, *(line(str(at)) for at in range(6))), *ENDED)
        assert time.monotonic() - began > 1.5
        counts = running.here.gateway.records.batch_counts
        assert (counts.done, counts.failed) == (6, 0)
        assert counts.retried > 0
    assert ended["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    assert len(worker.seen) == 6


async def test_rows_that_no_limit_will_ever_let_through_fail(gateway):
    limits = [{"total_tokens": 50, "per": "minute"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **with_database()) as running:
        ended = await come_to(running, await create(running, line("a", max_tokens=1000)), *ENDED)
        (bad,) = await lines_of(running, ended["error_file_id"])
    assert bad["response"]["body"]["error"]["code"] == "request_exceeds_limit"


async def test_a_row_has_the_bounds_of_a_body(gateway):
    wide = line("wide", stop=[[]] * (CONTAINERS_MAX + 1))
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        ended = await come_to(running, await create(running, line("a"), wide), *ENDED)
        assert ended["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        (bad,) = await lines_of(running, ended["error_file_id"])
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("wide", 400)
    assert "objects and arrays" in bad["response"]["body"]["error"]["message"]


async def test_a_gateway_that_stops_amid_batches_leaves_no_connection_to_the_database(gateway):
    for moment in range(5):
        async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
            rows = [line(str(number)) for number in range(50)]
            await asyncio.gather(*(create(running, *rows) for _ in range(3)))
            await asyncio.sleep(0.03 * moment)
        assert not [each for each in threading.enumerate() if "_connection_worker_thread" in each.name]


async def test_failures_of_a_worker_are_tried_again_and_then_reported(gateway, monkeypatch):
    monkeypatch.setattr(retry_schedule, "WAIT_SECONDS", (0.01, 0.02))
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        worker.then(break_after=0)
        batch = await create(running, line("a"))
        await running.until(lambda: running.here.gateway.records.batch_counts.retried >= 2, 60)
        worker.then(break_after=None)
        ended = await come_to(running, batch, *ENDED)
        assert ended["request_counts"]["completed"] == 1
        worker.then(status=400, body={"error": {"message": "no such thing"}})
        ended = await come_to(running, await create(running, line("a")), *ENDED)
        (bad,) = await lines_of(running, ended["error_file_id"])
    assert (bad["response"]["status_code"], bad["response"]["body"]["error"]["message"]) == (
        400,
        "no such thing",
    )


async def test_cancelling_aborts_what_runs_and_keeps_what_is_done(gateway):
    settings = with_database(**{"batches.running_rows_max": 4})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        counts = running.here.gateway.records.batch_counts
        batch = await create(running, *(line(str(at)) for at in range(100)))
        await running.until(lambda: counts.done >= 5, 60)
        worker.then(until=asyncio.Event())
        before = len(worker.seen)  # Only those that come later wait for the event.
        await running.until(lambda: sum(seen.ended == "running" for seen in worker.seen[before:]) == 4, 60)
        status, cancelling = await post(running, f"/{batch['id']}/cancel")
        assert (status, cancelling["status"]) == (200, "cancelling")
        ended = await come_to(running, batch, *ENDED)
        await running.until(lambda: running.idle and all(seen.ended != "running" for seen in worker.seen), 60)
        kept = await lines_of(running, ended["output_file_id"])
        status, body = await post(running, f"/{batch['id']}/cancel")
        assert (status, body["error"]["param"]) == (400, "batch_id")
    assert (ended["status"], ended["cancelled_at"] >= ended["cancelling_at"]) == ("cancelled", True)
    assert ended["request_counts"] == {"total": 100, "completed": len(kept), "failed": 0}
    assert 5 <= len(kept) < 100
    # Every answer that a worker has finished is kept, and nothing else is.
    finished = [seen.body["messages"][0]["content"] for seen in worker.seen if seen.ended == "finished"]
    assert sorted(f"row {row['custom_id']}" for row in kept) == sorted(finished)


async def test_a_batch_past_its_deadline_reports_every_remaining_row_as_expired(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        worker.then(until=asyncio.Event())
        batch = await create(running, line("a"), line("b"))
        await running.until(lambda: len(worker.seen) == 2, 60)
        (run,) = running.here.batch_claimer._runs.values()
        run._end_as("expired")  # as its timer does
        ended = await come_to(running, batch, *ENDED)
        await running.until(lambda: running.idle, 60)
        bad = await lines_of(running, ended["error_file_id"])
    assert (ended["status"], ended["expired_at"] is not None) == ("expired", True)
    assert ended["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
    assert {(row["custom_id"], row["error"]["code"], row["response"]) for row in bad} == {
        ("a", "batch_expired", None),
        ("b", "batch_expired", None),
    }


async def test_a_file_that_a_batch_reads_stays(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        held = asyncio.Event()
        worker.then(until=held)
        batch = await create(running, line("a"))
        status, body = await called(running, f"/{batch['input_file_id']}", method="DELETE")
        assert (status, body["error"]["code"]) == (409, "file_in_use")
        held.set()
        await come_to(running, batch, "completed")
        assert (await called(running, f"/{batch['input_file_id']}", method="DELETE"))[0] == 200


async def test_a_tenant_has_so_many_unfinished_batches_at_most(gateway):
    settings = with_database(**{"batches.tenant_unfinished_max": 2})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        worker.then(until=asyncio.Event())
        batch, _ = [await create(running, line("a")) for _ in range(2)]
        body = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        status, refused = await post(running, "", body)
        assert (status, refused["error"]["code"]) == (429, "too_many_batches")
        await create(running, line("a"), tenant="globex")


async def test_a_gateway_that_lost_its_lease_writes_nothing(gateway, tmp_path):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        tenant_files = running.here.gateway.records.tenant_files
        worker.then(until=asyncio.Event())
        made = await create(running, line("a"))
        await running.until(lambda: worker.seen, 60)
        database = Database("sqlite:///radixgate.db", tmp_path)
        later = BatchStore(database, "later", wall=lambda: time.time() + 3600)
        taken = await later.claim(60)
        assert taken is not None
        assert (taken.id, taken.generation) == (made["id"], 2)
        earlier = BatchStore(database, "later")
        stale = await earlier.get("acme", made["id"])
        result = RowResult(row=0, good=True, line="{}")
        await later.add_results(taken, [result])
        await later.add_results(taken, [result])
        assert (await later.reload(taken)).completed == 1
        with pytest.raises(LeaseLost):
            await later.add_results(replace(stale, generation=1), [result])

        async def text():
            yield b"{}\n"

        file = await tenant_files.write("acme", text(), FileLabel(purpose="batch_output", name="out"))
        async with later.finish(taken, "completed", output_file=file.id) as connection:
            await tenant_files.store.complete_in(connection, file)
        await running.until(lambda: not running.here.gateway.records.batch_counts.batches, 60)
        assert (await show(running, made))["request_counts"]["completed"] == 1
        await database.close()
