"""The console with 1,000 workers and 10,000 tenants: sizes of answers and rows of pages; times are printed.

The gateway, the browser and the workers share this machine, so that times are bounds from above.
"""

import asyncio
import json
import sqlite3
import time
from statistics import median

import msgspec
import pytest

from gateway.telemetry.progress import Progress
from tests.browser.chromium import ARGUMENTS, CHROMIUM
from tests.fakes.scripted_worker import ScriptedWorker

playwright_api = pytest.importorskip("playwright.async_api", reason="make test-browser installs Playwright")

WORKERS, TENANTS = 1000, 10_000
TOKEN = "f3b1c9d07a5e4c2b8d6f0a1e3c5b7d9f"
BYTES_MAX, ROWS_MAX = 150_000, 250
ROUNDS = 5
PAGES = {
    "overview": ("overview?workers=50&tenants=25", "history"),
    "requests": ("requests?limit=100&brief=true",),
    "queue": ("queue?limit=50",),
    "workers": ("workers?find=&offset=0&limit=100",),
    "tree": ("index?nodes=120",),
    "policies": ("policies",),
    "tenants": ("plans?limit=1000", "settings?find=tenants[&limit=1", "tenants?find=&after=&limit=100"),
    "tenants/t-05000": ("keys?limit=200&tenant=t-05000", "usage?by=day&tenant=t-05000"),
    "usage": ("usage?by=day", "usage?by=tenant&limit=10000"),
    "playground": ("overview?workers=50&tenants=0",),
    "settings": ("settings?find=&changed=true&offset=0&limit=200",),
    "audit": ("audit?limit=100",),
}
"""Pages, and what each of them reads."""

UNBOUNDED = {"usage?by=tenant&limit=10000"}
"""Read once when a page opens, not again and again."""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
    pytest.mark.timeout(600),
]


async def measured(running, path):
    """Return the milliseconds until the whole answer has come, and its bytes."""
    times, size = [], 0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        url = f"{running.admin}/admin/v1/{path}"
        async with running.http.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
            body = await answer.read()
            assert answer.status == 200, (path, body[:300])
        times.append(1000 * (time.perf_counter() - began))
        size = len(body)
    return median(times), size


def add_tenants(database_path):
    """Write the tenants into the database.

    This needs a thread of its own: the gateway ends a transaction in the event loop, which must not wait here.
    """
    with sqlite3.connect(database_path, timeout=60) as database:
        database.execute("BEGIN IMMEDIATE")  # A transaction that begins to read could not write later.
        columns = [row[1] for row in database.execute("PRAGMA table_info(tenants)")]
        sample = dict(zip(columns, database.execute("SELECT * FROM tenants LIMIT 1").fetchone(), strict=True))
        rows = [tuple({**sample, "id": f"t-{n:05}"}.values()) for n in range(TENANTS)]
        database.executemany(f"INSERT INTO tenants VALUES ({','.join('?' * len(columns))})", rows)


def add_requests(gateway):
    """Put requests of all tenants and on all workers into the gateway's memories."""
    progress = Progress("req-0", "chat/completions", time.monotonic, time.time)
    progress.model, progress.stream, progress.answered = "m", True, True
    progress.output_sent()
    record = progress.record()
    for number in range(TENANTS):
        of_tenant = msgspec.structs.replace(
            record, id=f"req-{number}", tenant=f"t-{number:05}", worker=f"w{number % WORKERS}"
        )
        gateway.overview.observe(of_tenant)
        failed = msgspec.structs.replace(of_tenant, code="worker_error", status=502)
        gateway.explorer._store.observe(failed)


async def test_pages_stay_small_and_fast_with_a_thousand_workers_and_ten_thousand_tenants(gateway, tmp_path):
    async with ScriptedWorker() as worker:
        workers = [{"id": f"w{n}", "kind": "sglang", "url": worker.url} for n in range(WORKERS)]
        settings = {"admin.token": TOKEN, "database.url": f"sqlite:///{tmp_path}/radixgate.db"}
        async with gateway(worker, all_up=False, **settings, workers=json.dumps(workers)) as running:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            put = f"{running.admin}/admin/v1/tenants/first"
            async with running.http.put(put, json={}, headers=headers) as made:
                assert made.status == 201
            await asyncio.to_thread(add_tenants, tmp_path / "radixgate.db")
            add_requests(running.here.gateway)
            print(f"\n{'answer':<48} {'ms':>7} {'bytes':>9}")
            for path in dict.fromkeys(path for paths in PAGES.values() for path in paths):
                milliseconds, size = await measured(running, path)
                print(f"{path:<48} {milliseconds:7.1f} {size:9,}")
                assert size <= BYTES_MAX or path in UNBOUNDED, path
            print(f"\n{'page':<48} {'rows':>7} {'elements':>9}")
            async with playwright_api.async_playwright() as driver:
                browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                page = await browser.new_page()
                await page.goto(f"{running.admin}/ui/?token={TOKEN}")
                for name in PAGES:
                    await page.evaluate(f"location.hash = {name!r}")
                    await page.wait_for_function(
                        "name => document.querySelector('#pages [aria-current]')?.hash === '#' + name.split('/')[0]"
                        " && document.querySelector('#main h2') && !document.querySelector('#main > .dim')"
                        " && document.querySelector('#main :is(.figures, table, .empty, .note, form)')",
                        arg=name,
                        timeout=60_000,
                    )
                    await asyncio.sleep(0.5)
                    rows = await page.locator("#main tr").count()
                    elements = await page.locator("#main *").count()
                    print(f"{name:<48} {rows:7} {elements:9,}")
                    assert rows <= ROWS_MAX, name
                await browser.close()
