"""Files through a whole gateway: owners, bounds, expiry, and the memory that uploads take."""

import asyncio
import json
import os

import aiohttp
import pytest
from aiohttp import FormData

from gateway.database.database import Database
from gateway.database.file_store import FileStore
from tests.fakes.scripted_worker import ScriptedWorker

MIB = 1024 * 1024


@pytest.fixture
async def running(gateway, tmp_path):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        yield running


def with_database(**settings):
    return {"database.url": "sqlite:///radixgate.db", **settings}


def form(content=b"a line\n", purpose="user_data", name="a.txt", **more):
    data = FormData(quote_fields=False)
    # As JavaScript's SDK sends it: the file is first.
    data.add_field("file", content, filename=name, content_type="application/octet-stream")
    for field, value in {"purpose": purpose, **more}.items():
        if value is not None:
            data.add_field(field, value)
    return data


async def upload(running, *args, tenant="acme", prefix="/v1", **more):
    url = f"{running.url}{prefix}/files"
    async with running.http.post(url, data=form(*args, **more), headers=running.headers(tenant)) as answer:
        return answer.status, await answer.json()


async def called(running, path, *, method="GET", tenant="acme", **more):
    url, headers = f"{running.url}/v1/files{path}", running.headers(tenant)
    async with running.http.request(method, url, headers=headers, **more) as answer:
        body = await answer.read()
        return answer.status, json.loads(body) if answer.content_type == "application/json" else body


async def test_a_file_is_kept_listed_read_and_deleted(running):
    status, file = await upload(running, b"one\ntwo\n", name="../dir/a.jsonl", prefix="")
    assert status == 200
    assert (file["object"], file["bytes"], file["filename"], file["purpose"], file["status"]) == (
        *("file", 8, "a.jsonl", "user_data"),
        "processed",
    )
    assert file["expires_at"] - file["created_at"] in range(30 * 86400 - 2, 30 * 86400 + 3)
    assert await called(running, f"/{file['id']}") == (200, file)
    assert await called(running, f"/{file['id']}/content") == (200, b"one\ntwo\n")
    assert (await called(running, ""))[1]["data"] == [file]
    assert await called(running, f"/{file['id']}", method="DELETE") == (
        200,
        {"id": file["id"], "object": "file", "deleted": True},
    )
    for path in ("", "/content"):
        assert (await called(running, f"/{file['id']}{path}"))[0] == 404


async def test_a_file_belongs_to_its_tenant_alone(running):
    _, file = await upload(running)
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        status, body = await called(running, f"/{file['id']}{path}", method=method, tenant="globex")
        assert (status, body["error"]["code"]) == (404, "not_found")
    assert (await called(running, "", tenant="globex"))[1]["data"] == []
    async with running.http.get(f"{running.url}/v1/files") as answer:
        assert answer.status == 401
    assert (await called(running, f"/{file['id']}"))[0] == 200


async def test_lists_come_in_pages_by_purpose_and_in_both_orders(running):
    made = [(await upload(running, name=f"{at}"))[1]["id"] for at in range(5)]
    other = (await upload(running, purpose="vision"))[1]["id"]
    _, page = await called(running, "?limit=2")
    assert ([f["id"] for f in page["data"]], page["has_more"]) == ([other, made[4]], True)
    _, rest = await called(running, f"?limit=10&after={page['last_id']}")
    assert ([f["id"] for f in rest["data"]], rest["has_more"]) == (made[3::-1], False)
    _, first = await called(running, "?order=asc&purpose=user_data")
    assert [f["id"] for f in first["data"]] == made
    for query in ("limit=0", "limit=x", "order=up", "after=none"):
        assert (await called(running, f"?{query}"))[0] == 400


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"purpose": "other"}, "purpose"),
        ({"purpose": None}, "purpose"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}, "expires_after"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after"),
        ({"expires_after[seconds]": "³"}, "expires_after"),
    ],
    ids=["purpose", "no purpose", "too soon", "anchor", "no number"],
)
async def test_what_is_wrong_with_an_upload_is_named(running, more, param):
    status, body = await upload(running, **more)
    assert (status, body["error"]["param"]) == (400, param)
    assert (await called(running, ""))[1]["data"] == []


async def test_what_is_no_upload_is_refused_kindly(running):
    url, headers = f"{running.url}/v1/files", running.headers()
    broken = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhalf'
    for kind, body in (
        ("application/json", b"{}"),
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"nothing of the kind"),
        ("multipart/form-data; boundary=x", broken),
    ):
        async with running.http.post(url, data=body, headers={**headers, "Content-Type": kind}) as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (400, "invalid_request_error")


async def test_expires_after_bounds_how_long_a_file_is_kept(running, tmp_path):
    _, file = await upload(
        running, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    )
    assert file["expires_at"] - file["created_at"] in range(3599, 3603)
    contents = list((tmp_path / "files" / "acme").iterdir())
    assert [path.name for path in contents] == [file["id"]]
    later = FileStore(Database("sqlite:///radixgate.db", tmp_path), wall=lambda: file["expires_at"] + 1.0)
    assert await later.get("acme", file["id"]) is None
    assert [left.id for left in await later.take_leftovers()] == [file["id"]]
    # What is over is swept with its content.
    assert await running.here.gateway.records.tenant_files.sweep() == 1
    assert list((tmp_path / "files" / "acme").iterdir()) == []


async def test_large_files_pass_in_bounded_memory(running):
    async def pieces():
        for _ in range(64):
            yield os.urandom(MIB)

    peak = [0]

    async def watch():
        while True:
            peak[0] = max(peak[0], resident())
            await asyncio.sleep(0.01)

    before, watching = resident(), asyncio.create_task(watch())
    status, file = await upload(running, pieces())
    assert (status, file["bytes"]) == (200, 64 * MIB)
    size = 0
    async with running.http.get(
        f"{running.url}/v1/files/{file['id']}/content", headers=running.headers()
    ) as answer:
        async for piece in answer.content.iter_any():
            size += len(piece)
    watching.cancel()
    assert size == 64 * MIB
    assert peak[0] - before < 40 * MIB


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_tenants_bytes_are_bounded_exactly_also_when_uploads_come_together(gateway, tmp_path):
    bounds = {"files.tenant_bytes_max": 10_000, "files.file_bytes_max": 6_000}
    async with ScriptedWorker() as worker, gateway(worker, **with_database(**bounds)) as running:
        status, body = await upload(running, b"x" * 6_001)
        assert (status, body["error"]["code"]) == (413, "payload_too_large")
        outcomes = await asyncio.gather(*(upload(running, b"x" * 3_000) for _ in range(6)))
        assert sorted(status for status, _ in outcomes) == [200, 200, 200, 429, 429, 429]
        refused = next(body for status, body in outcomes if status == 429)
        assert refused["error"]["code"] == "storage_exceeded"
        assert (await upload(running, b"x" * 3_000, tenant="globex"))[0] == 200
        kept = (await called(running, ""))[1]["data"]
        await called(running, f"/{kept[0]['id']}", method="DELETE")
        assert (await upload(running, b"x" * 3_000))[0] == 200
        await running.here.gateway.records.tenant_files.sweep()
    assert len(list((tmp_path / "files" / "acme").iterdir())) == 3


async def test_an_upload_that_breaks_off_leaves_nothing(running, tmp_path):
    began = asyncio.Event()

    async def half():
        yield b"x" * 3 * MIB
        began.set()
        await asyncio.sleep(3600)

    async with aiohttp.ClientSession() as http:
        sending = asyncio.create_task(
            http.post(f"{running.url}/v1/files", data=form(half()), headers=running.headers())
        )
        await began.wait()
        sending.cancel()
    directory = tmp_path / "files" / "acme"
    await running.until(lambda: not directory.exists() or not list(directory.iterdir()), 60)
    assert (await called(running, ""))[1]["data"] == []
    tenant_files = running.here.gateway.records.tenant_files
    for _ in range(100):
        if await tenant_files.sweep():
            break
        await asyncio.sleep(0.02)
    assert await tenant_files.sweep() == 0


async def test_there_are_no_files_without_a_database(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        for status, body in (await upload(running), await called(running, "")):
            assert (status, body["error"]["code"]) == (404, "not_found")


async def test_files_may_be_in_a_bucket(gateway, s3_server, tmp_path):
    bucket = await s3_server.bucket()
    where = {"bucket": bucket, "endpoint": s3_server.url, "access_key_id": "a", "secret_access_key": "b"}
    settings = with_database(**{f"files.s3.{name}": value for name, value in where.items()})
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        _, file = await upload(running, b"some text")
        assert await called(running, f"/{file['id']}/content") == (200, b"some text")
    assert not (tmp_path / "files").exists()


async def test_a_store_that_is_away_is_a_503(gateway, tmp_path):
    async with ScriptedWorker() as worker, gateway(worker, **with_database()) as running:
        (tmp_path / "files").write_text("no directory")
        status, body = await upload(running)
        assert (status, body["error"]["code"]) == (503, "files_unavailable")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (b"\n" * 3_000_000, "cannot be read"),
        (b"a line\r\n" * 100_000, "cannot be read"),
        (b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n' * 20_000, "more than 16 fields"),
    ],
    ids=["empty lines", "lines", "parts of one name"],
)
async def test_a_form_of_very_many_lines_or_parts_is_refused_before_they_are_read(running, before, words):
    head = b"--x\r\nContent-Disposition: form-data; name="
    form = head + b'"purpose"\r\n\r\nuser_data\r\n' + head + b'"file"; filename="a"\r\n\r\nhi\r\n--x--\r\n'
    headers = {**running.headers(), "Content-Type": "multipart/form-data; boundary=x"}
    for body, status in ((b"preamble\r\n" + form, 200), (before + form, 400)):
        async with running.http.post(f"{running.url}/v1/files", data=body, headers=headers) as answer:
            assert answer.status == status
            text = await answer.text()
    assert words in text
