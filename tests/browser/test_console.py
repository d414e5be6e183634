"""Every page of the console as owner, operator, viewer and tenant, in Debian's Chromium.

Each visit checks that no request leaves the origin, that nothing fails in the page, that axe-core finds nothing to
object to, and that nothing is cut off on a telephone.
"""

import asyncio
import os
import re
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import ARGUMENTS, CHROMIUM, TOOLS
from tests.fakes.scripted_worker import ScriptedWorker

playwright_api = pytest.importorskip("playwright.async_api", reason="make test-browser installs Playwright")

PAGES = (
    *("overview", "requests", "queue", "workers", "tree", "route", "policies", "tenants", "tenants/acme"),
    *("usage", "playground", "settings", "audit"),
)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PICTURES = os.environ.get("RADIXGATE_SCREENSHOTS")
"""Directory for pictures of the pages; none by default."""

OWNER = "f3b1c9d07a5e4c2b8d6f0a1e3c5b7d9f"
WAIT_MS = 30_000

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
    pytest.mark.timeout(300),
]


class Visit:
    """One browser tab on the console, with what it did that it should not."""

    def __init__(self, page, origin):
        self.page = page
        self.origin = origin
        self.elsewhere = []
        self.failures = []
        self.asked = []
        page.on("request", self._requested)
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        page.on("console", lambda line: line.type == "error" and self.failures.append(line.text))

    def _requested(self, request):
        self.asked.append(request.url)
        if urlsplit(request.url).scheme != "data" and not request.url.startswith(self.origin + "/"):
            self.elsewhere.append(request.url)

    async def show(self, name):
        """Open a page, and wait until it has loaded."""
        await self.page.evaluate(f"location.hash = {name!r}")
        await self.page.wait_for_function(
            "name => document.querySelector('#pages a[aria-current]')?.hash === '#' + name.split('/')[0]"
            " && document.querySelector('#main h2') && !document.querySelector('#main > .dim')",
            arg=name,
            timeout=WAIT_MS,
        )
        await asyncio.sleep(0.2)

    async def check(self):
        """Assert that the page is accessible, fits, is whole, and asks nothing of other hosts."""
        found = await self.page.evaluate(
            "async () => (await axe.run()).violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' '))"
        )
        assert found == []
        cut_off = await self.page.evaluate(
            "() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('*')]"
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.wide, nav'))"
            ".map(e => e.outerHTML.slice(0, 120))"
        )
        assert cut_off == []
        text = await self.page.inner_text("body")
        assert not any(word in text for word in ("NaN", "undefined", "[object"))
        assert self.elsewhere == []
        assert self.failures == []

    async def picture(self, name):
        """Take a picture of the page, if pictures are wanted."""
        if PICTURES:
            await self.page.screenshot(path=Path(PICTURES) / f"{name}.png")


@asynccontextmanager
async def console(gateway, tmp_path, *, scheme="light", viewport=DESKTOP, **more):
    """A gateway with a database and some traffic, and a function that opens the console with a token."""
    settings = {"admin.token": OWNER, "database.url": f"sqlite:///{tmp_path}/radixgate.db", **more}
    settings["telemetry.requests.slow_seconds"] = "0.000001"
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other, **settings) as running:
            for number in range(6):
                async with running.chat(
                    "A long beginning that is shared. " * 20 + str(number), stream=True
                ) as answer:
                    await answer.read()
            running.worker, running.other = one, other
            async with playwright_api.async_playwright() as driver:
                browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                context = await browser.new_context(viewport=viewport, color_scheme=scheme)

                async def enter(token):
                    page = await context.new_page()
                    visit = Visit(page, running.admin)
                    await page.goto(f"{running.admin}/ui/?token={token}")
                    await page.evaluate((TOOLS / "axe.min.js").read_text())
                    await page.wait_for_selector("#main h2", timeout=WAIT_MS)
                    return visit

                yield running, enter
                await browser.close()


async def operator_token(running, role):
    """Return the token of a new operator with this role."""
    headers = {"Authorization": f"Bearer {OWNER}"}
    url = f"{running.admin}/admin/v1/operators"
    async with running.http.post(url, json={"role": role, "name": f"a {role}"}, headers=headers) as response:
        made = await response.json()
        assert response.status == 201, made
        return made["token"]


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)])
async def test_every_page_is_accessible_fits_and_stays_at_home(gateway, tmp_path, scheme, viewport):
    async with console(gateway, tmp_path, scheme=scheme, viewport=viewport) as (_, enter):
        visit = await enter(OWNER)
        for name in PAGES:
            await visit.show(name)
            await visit.check()
            if scheme == "light":
                await visit.picture(f"{name}{'-phone' if viewport is PHONE else ''}")


async def test_the_token_leaves_the_address_and_no_cookie_has_it(gateway, tmp_path):
    async with console(gateway, tmp_path) as (_, enter):
        visit = await enter(OWNER)
        assert OWNER not in visit.page.url
        assert await visit.page.evaluate("document.cookie") == ""


async def test_an_operator_makes_a_tenant_and_its_key_which_is_shown_once(gateway, tmp_path):
    async with console(gateway, tmp_path) as (running, enter):
        visit = await enter(await operator_token(running, "operator"))
        page = visit.page
        await visit.show("tenants")
        await page.get_by_label("New tenant").fill("initech")
        await page.get_by_role("button", name="Create").click()
        await page.get_by_role("button", name="Create a key").click()
        secret = await page.locator(".secret").inner_text(timeout=WAIT_MS)
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}

        async def status():
            url, headers = f"{running.url}/v1/chat/completions", {"Authorization": f"Bearer {secret}"}
            async with running.http.post(url, json=body, headers=headers) as answer:
                return answer.status

        async def until(wanted):
            async with asyncio.timeout(30):
                while await status() != wanted:
                    await asyncio.sleep(0.05)

        await until(200)
        await visit.check()
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
        await page.get_by_role("button", name="Revoke").click()
        await page.get_by_text("revoked").first.wait_for(timeout=WAIT_MS)
        await until(401)
        await visit.show("overview")
        await visit.show("tenants/initech")
        assert secret not in await page.content()


async def test_an_operator_makes_a_plan_and_changes_it(gateway, tmp_path):
    async with console(gateway, tmp_path) as (running, enter):
        visit = await enter(await operator_token(running, "operator"))
        page = visit.page
        await visit.show("tenants")
        await page.get_by_label("Plan", exact=True).last.fill("gold")
        limits = page.get_by_label("Limits, one in each line")
        await limits.fill("requests=6000/minute\nspend=20/month,reset=calendar")
        await page.get_by_role("button", name="Save the plan").click()
        row = page.get_by_text("6,000 requests per minute; 20 spend per month, reset calendar")
        await row.wait_for(timeout=WAIT_MS)
        await page.get_by_role("button", name="Change gold").click()
        assert await limits.input_value() == "requests=6000/minute\nspend=20/month,reset=calendar"
        await limits.fill("requests=7/hour,models=a b,mode=soft")
        await page.get_by_role("button", name="Save the plan").click()
        await page.get_by_text("7 requests per hour, models a b, mode soft").wait_for(timeout=WAIT_MS)
        await limits.fill("many")
        await page.get_by_label("Plan", exact=True).last.fill("gold")
        await page.get_by_role("button", name="Save the plan").click()
        await page.get_by_text("expected a limit as requests=60/minute").wait_for(timeout=WAIT_MS)
        await visit.check()


async def test_tenants_of_the_settings_file_are_listed_and_their_limits_follow(gateway, tmp_path):
    limits = [{"requests": 1000, "per": "hour"}]
    async with console(gateway, tmp_path, limits=limits) as (running, enter):
        visit = await enter(OWNER)
        page = visit.page
        await visit.show("tenants")
        await page.get_by_role("link", name="acme").click()
        await page.get_by_text("This tenant is in the settings file").wait_for(timeout=WAIT_MS)
        assert await page.get_by_role("button", name="Create a key").count() == 0
        await page.get_by_text("What is left of each now").wait_for(timeout=WAIT_MS)
        left = page.locator("td[data-head=left]").first
        before = await left.inner_text()
        async with running.chat("hello " * 50) as answer:
            assert answer.status == 200
        async with asyncio.timeout(30):
            while await left.inner_text() == before:
                await asyncio.sleep(0.05)
        await visit.check()


async def test_all_tenants_of_a_large_settings_file_can_be_turned_to(gateway, tmp_path):
    tenants = {"acme": {}, **{f"tenant-{number}": {} for number in range(1500)}}
    async with console(gateway, tmp_path, tenants=tenants) as (_, enter):
        visit = await enter(OWNER)
        page = visit.page
        await visit.show("tenants")
        await page.get_by_text("page 1 of 16").wait_for(timeout=WAIT_MS)
        for number in range(2, 17):
            await page.get_by_role("button", name="Next").click()
            await page.get_by_text(f"page {number} of 16").wait_for(timeout=WAIT_MS)
        assert await page.get_by_role("link", name="tenant-").count() == 1
        await page.get_by_label("Find a tenant").fill("tenant-1499")
        await page.get_by_text("page 16 of 16").wait_for(state="detached", timeout=WAIT_MS)
        await page.get_by_role("link", name="tenant-1499").click()
        await page.get_by_text("This tenant is in the settings file").wait_for(timeout=WAIT_MS)
        await visit.check()


@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_every_page_opens_for_every_role(gateway, tmp_path, role):
    async with console(gateway, tmp_path) as (running, enter):
        visit = await enter(await operator_token(running, role))
        for name in PAGES:
            await visit.show(name)
            await visit.check()


async def test_a_viewer_may_read_everything_and_change_nothing(gateway, tmp_path):
    async with console(gateway, tmp_path) as (running, enter):
        visit = await enter(await operator_token(running, "viewer"))
        page = visit.page
        await visit.show("tenants")
        assert await page.get_by_role("button", name="Create").count() == 0
        await visit.show("workers")
        assert await page.get_by_role("button", name="drain").count() == 0
        await visit.show("playground")
        assert await page.get_by_text("This needs the role operator").count() == 1
        assert await page.get_by_role("button", name="Send").count() == 0


async def test_a_page_learns_of_a_change_without_asking_again(gateway, tmp_path):
    async with console(gateway, tmp_path) as (running, enter):
        visit = await enter(OWNER)
        await visit.show("overview")
        await visit.page.get_by_text("6 since the start", exact=True).wait_for(timeout=WAIT_MS)
        visit.asked.clear()
        async with running.chat() as answer:
            await answer.read()
        await visit.page.get_by_text("7 since the start", exact=True).wait_for(timeout=WAIT_MS)
        assert [url for url in visit.asked if "/overview" in url] == []


async def test_the_pages_work_by_keyboard_alone(gateway, tmp_path):
    async with console(gateway, tmp_path) as (_, enter):
        page = (await enter(OWNER)).page
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        await page.locator("#pages a", has_text="Workers").focus()
        await page.keyboard.press("Enter")
        find = page.get_by_label("Find by id")
        await find.wait_for(timeout=WAIT_MS)
        await find.focus()
        await page.keyboard.type("w1")
        await page.get_by_text("1 of 2 workers").wait_for(timeout=WAIT_MS)
        assert await page.evaluate("document.activeElement.type") == "search"


async def test_an_operator_tries_a_model_with_a_key_and_finds_its_request(gateway, tmp_path):
    async with console(gateway, tmp_path) as (running, enter):
        visit = await enter(await operator_token(running, "operator"))
        page = visit.page
        await visit.show("playground")
        await page.get_by_label("API key of a tenant").fill(running.keys["globex"].text)
        await page.get_by_label("Message").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("w0 w1 w2 w3").wait_for(timeout=WAIT_MS)
        await page.get_by_role("link", name="Where the time went").click()
        await page.get_by_text("Ranking of the workers at that moment").wait_for(timeout=WAIT_MS)
        assert await page.get_by_role("link", name="globex").count() == 1
        await visit.check()


async def test_the_settings_in_force_are_found_with_their_sources(gateway, tmp_path):
    async with console(gateway, tmp_path) as (_, enter):
        visit = await enter(OWNER)
        await visit.show("settings")
        await visit.page.get_by_text("--set admin.token").wait_for(timeout=WAIT_MS)
        assert OWNER not in await visit.page.content()
        await visit.page.get_by_label("Find in path or source").fill("routing.policy")
        await visit.page.get_by_label("only what is not at its default").uncheck()
        await visit.page.get_by_text("1 settings").wait_for(timeout=WAIT_MS)


async def test_the_policies_are_compared(gateway, tmp_path):
    shadow = {"routing.shadow.policy": "round_robin"}
    async with console(gateway, tmp_path, **shadow) as (_, enter):
        visit = await enter(OWNER)
        await visit.show("policies")
        await visit.page.get_by_text("round_robin (shadow)").wait_for(timeout=WAIT_MS)
        await visit.check()


async def test_savings_by_the_cache_are_shown_in_money(gateway, tmp_path):
    models = '[{"name": "m", "prices": {"input": 40000, "cached_input": 10000, "output": 1}}]'
    async with console(gateway, tmp_path, models=models) as (running, enter):
        visit = await enter(OWNER)
        running.worker.then(prompt_tokens=100, cached_tokens=80, tokens=2)
        running.other.then(prompt_tokens=100, cached_tokens=80, tokens=2)
        async with running.chat() as answer:
            await answer.read()
        await running.here.gateway.records.ledger.shipper.ship()
        await visit.show("usage")
        saved = visit.page.locator(".figures div", has_text="saved by the cache").locator("dd").first
        assert await saved.inner_text() == "2.40"


async def test_without_a_database_the_pages_that_need_one_show_that_it_is_missing(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with playwright_api.async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            page = await browser.new_page()
            await page.goto(f"{running.admin}/ui/#workers")
            await page.get_by_text("1 of 1 workers").wait_for(timeout=WAIT_MS)
            await page.goto(f"{running.admin}/ui/#tenants")
            await page.get_by_text("come from the settings file only").wait_for(timeout=WAIT_MS)
            await browser.close()


async def test_an_operator_drains_and_resumes_a_worker(gateway, tmp_path):
    async with console(gateway, tmp_path) as (running, enter):
        visit = await enter(await operator_token(running, "operator"))
        await visit.show("workers")
        await visit.page.get_by_role("button", name="drain w0").click()
        await visit.page.get_by_role("heading", name="Workers").click()
        resume = visit.page.get_by_role("button", name="resume w0")
        await resume.wait_for(timeout=WAIT_MS)
        await resume.click()


async def test_a_request_is_found_and_explained(gateway, tmp_path):
    async with console(gateway, tmp_path) as (_, enter):
        visit = await enter(OWNER)
        await visit.show("requests")
        await visit.page.locator("#main tbody a").first.click()
        await visit.page.get_by_text("Ranking of the workers at that moment").wait_for(timeout=WAIT_MS)
        assert await visit.page.get_by_text("tokens held").count() > 0
        await visit.check()
        await visit.picture("request")


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
async def test_a_tenant_sees_its_usage_limits_and_requests_and_tries_a_model(gateway, tmp_path, viewport):
    async with console(gateway, tmp_path, viewport=viewport) as (running, enter):
        visit = await enter(OWNER)
        page = visit.page
        visit.origin = running.url
        await page.goto(f"{running.url}/ui/")
        await page.evaluate((TOOLS / "axe.min.js").read_text())
        await page.get_by_label("API key").fill("rg-wrong")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_text("Incorrect API key").wait_for(timeout=WAIT_MS)
        visit.failures.clear()  # The browser logs the 401.
        await page.get_by_label("API key").fill(running.keys["acme"].text)
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("heading", name="Requests").wait_for(timeout=WAIT_MS)
        assert await page.get_by_text(re.compile(r"\bw0\b")).count() == 0
        await visit.check()
        await page.get_by_label("Message").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await page.wait_for_function("document.querySelector('[aria-live=polite]').textContent.length > 1")
        assert visit.failures == []
        await visit.picture(f"tenant{'-phone' if viewport is PHONE else ''}")


async def test_a_wrong_token_leads_back_to_the_form_for_the_token(gateway, tmp_path):
    async with console(gateway, tmp_path) as (_, enter):
        visit = await enter("wrong")
        await visit.page.get_by_label("Token of an operator").fill(OWNER)
        await visit.page.get_by_role("button", name="Sign in").click()
        await visit.page.get_by_role("heading", name="Overview").wait_for(timeout=WAIT_MS)
        assert visit.elsewhere == []
