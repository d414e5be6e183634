"""Every page of the operator console, as owner, operator and viewer, in Debian's Chromium.

Each visit checks that no request leaves the origin, that nothing fails in the page, that axe-core finds nothing to
object to, and that nothing is cut off on a telephone.
"""

import asyncio
import os
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

TOOLS = Path(__file__).parents[2] / ".tools/browser"
CHROMIUM = shutil.which("chromium")
sys.path.append(str(TOOLS / "python"))
playwright_api = pytest.importorskip("playwright.async_api", reason="make test-browser installs Playwright")

PAGES = ("overview", "requests", "tenants", "usage", "workers", "queue", "tree", "route", "audit")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PICTURES = os.environ.get("RADIXGATE_SCREENSHOTS")
"""Directory for pictures of the pages; none by default."""

OWNER = "7be41c0d9a5f4e3288c6d1b0f7a9e253"
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
        page.on("request", self._requested)
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        page.on("console", lambda line: line.type == "error" and self.failures.append(line.text))

    def _requested(self, request):
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
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.wide'))"
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
async def console(gateway, tmp_path, *, scheme="light", viewport=DESKTOP):
    """A gateway with a database and some traffic, and a function that opens the console with a token."""
    settings = {"admin.token": OWNER, "database.url": f"sqlite:///{tmp_path}/radixgate.db"}
    settings["telemetry.requests.slow_seconds"] = "0.000001"
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other, **settings) as running:
            for number in range(6):
                async with running.chat(
                    "A long beginning that is shared. " * 20 + str(number), stream=True
                ) as answer:
                    await answer.read()
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


async def test_a_viewer_sees_everything_and_changes_nothing(gateway, tmp_path):
    async with console(gateway, tmp_path) as (running, enter):
        visit = await enter(await operator_token(running, "viewer"))
        for name in PAGES:
            await visit.show(name)
        await visit.show("tenants")
        assert await visit.page.get_by_role("button", name="Create").count() == 0
        await visit.show("workers")
        assert await visit.page.get_by_role("button", name="drain").count() == 0
        await visit.check()


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
        assert await page.get_by_text("w0").count() == 0
        await visit.check()
        await page.get_by_label("Message").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await page.wait_for_function("document.querySelector('[aria-live=polite]').textContent.length > 1")
        assert visit.failures == []
        await visit.picture(f"tenant{'-phone' if viewport is PHONE else ''}")


async def test_a_wrong_token_leads_to_the_form_that_asks_for_it(gateway, tmp_path):
    async with console(gateway, tmp_path) as (_, enter):
        visit = await enter("wrong")
        await visit.page.get_by_label("Token of an operator").fill(OWNER)
        await visit.page.get_by_role("button", name="Sign in").click()
        await visit.page.get_by_role("heading", name="Overview").wait_for(timeout=WAIT_MS)
        assert visit.elsewhere == []
