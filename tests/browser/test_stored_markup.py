"""Texts that tenants, operators and workers choose are shown as text on every page, also where they are markup."""

import json

import pytest

from tests.browser.chromium import ARGUMENTS, CHROMIUM
from tests.browser.test_console import OWNER, PAGES, WAIT_MS, Visit, playwright_api
from tests.fakes.scripted_worker import ScriptedWorker

MARKUP = "<img src=x onerror='window.stolen=1'><script>window.stolen=1</script>\"><b class=planted>"
SCRIPT_URL = "javascript:window.stolen=1//"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
    pytest.mark.timeout(300),
]


async def plant(running):
    """Name operators, models, users and tags with markup, and send prompts of it."""
    owner = {"Authorization": f"Bearer {OWNER}"}
    for name in (MARKUP, SCRIPT_URL):
        body = {"role": "viewer", "name": name}
        async with running.http.post(f"{running.admin}/admin/v1/operators", json=body, headers=owner) as made:
            assert made.status == 201, await made.text()
        for model in ("m", MARKUP, f"no model {name}"):
            fields = {"model": model, "user": name, "metadata": {"note": name}}
            async with running.chat(f"{name} " * 40, headers={"user-agent": name}, **fields) as answer:
                await answer.read()


async def test_names_with_markup_are_shown_as_text(gateway, tmp_path):
    settings = {"admin.token": OWNER, "database.url": f"sqlite:///{tmp_path}/radixgate.db"}
    settings["telemetry.requests.slow_seconds"] = "0.000001"
    settings["models"] = json.dumps([{"name": "m"}, {"name": MARKUP}])
    async with ScriptedWorker(("m", MARKUP)) as worker, gateway(worker, **settings) as running:
        await plant(running)
        async with playwright_api.async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            page = await browser.new_page()
            visit = Visit(page, running.admin)
            await page.goto(f"{running.admin}/ui/?token={OWNER}")
            await page.wait_for_selector("#main h2", timeout=WAIT_MS)
            shown = []
            for name in PAGES:
                await visit.show(name)
                planted = "() => [window.stolen, document.querySelectorAll('.planted, #main img').length]"
                assert await page.evaluate(planted) == [None, 0], name
                links = "() => [...document.querySelectorAll('[href], [src]')].map(e => e.href || e.src)"
                assert not [
                    link for link in await page.evaluate(links) if str(link).startswith("javascript:")
                ]
                if MARKUP in await page.inner_text("body"):
                    shown.append(name)
            await browser.close()
        assert {"requests", "queue", "workers", "tree"} <= set(shown), shown
        assert visit.elsewhere == []
        assert visit.failures == []
