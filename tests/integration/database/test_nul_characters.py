"""NUL characters in requests, which PostgreSQL cannot store: they are refused, and not taken for an outage."""

import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.batches import test_batches, test_message_batches
from tests.integration.files.test_files_api import called

NUL = "%00"


@pytest.fixture
async def running(gateway, tables_url):
    async with ScriptedWorker() as worker, gateway(worker, **{"database.url": tables_url}) as running:
        # There is something, so that it is looked into.
        await test_message_batches.create(running, test_message_batches.asked("a"))
        yield running


async def test_nothing_has_such_a_name(running):
    batch = test_message_batches.call
    for path, method in (("", "GET"), ("/cancel", "POST"), ("/results", "GET"), ("", "DELETE")):
        assert (await batch(running, f"/{NUL}{path}", method=method))[0] == 404
    assert (await test_batches.post(running, f"/{NUL}", method="GET"))[0] == 404
    for path in ("", "/content"):
        assert (await called(running, f"/{NUL}{path}"))[0] == 404
    url = f"{running.url}/v1/responses"
    async with running.http.get(f"{url}/{NUL}", headers=running.headers("acme")) as answer:
        assert answer.status == 404
    asked = {"model": "m", "input": "hello", "previous_response_id": "\0"}
    async with running.http.post(url, json=asked, headers=running.headers("acme")) as answer:
        assert answer.status in (400, 404)


async def test_no_list_begins_there(running):
    for name in ("after_id", "before_id"):
        assert (await test_message_batches.call(running, f"?{name}={NUL}"))[0] == 400
    assert (await test_batches.post(running, f"?after={NUL}", method="GET"))[0] == 400
    assert (await called(running, f"?after={NUL}"))[0] == 400
    status, found = await called(running, f"?purpose={NUL}")
    assert (status, found["data"]) == (200, [])
