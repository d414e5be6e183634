"""`make docs-screenshots`: takes the pictures of the console that the README and the documentation show.

    python -m tests.browser.docs_screenshots [--seconds N] [--all DIR] PICTURES

A real run is looked at in Debian's Chromium. With --all every page is taken, light, dark and on a telephone.
"""

import argparse
import asyncio
import shutil
import tempfile
from pathlib import Path

import aiohttp
from PIL import Image

from tests.browser.chromium import ARGUMENTS, CHROMIUM
from tests.browser.showcase import TOKEN, Showcase, showcase

from playwright.async_api import Browser, Page, async_playwright  # isort: skip  # its place is known by now

PAGES = (
    *("overview", "requests", "queue", "workers", "tree", "route", "policies", "tenants", "tenants/acme"),
    *("usage", "playground", "settings", "audit"),
)
SHOWN = {"overview": 1000, "tree": 760, "policies": 560}
"""The pages in the documentation, with the height of their pictures."""

COLOURS = 256
WIDTH = 1280


def main() -> None:
    """Run the showcase, and write the pictures."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("pictures", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="How long requests run before the pictures."
    )
    parser.add_argument("--all", type=Path, help="Directory for pictures of every page.")
    options = parser.parse_args()
    for directory in filter(None, (options.pictures, options.all)):
        directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(_take(options.pictures, options.all, options.seconds))


async def _take(pictures: Path, every: Path | None, seconds: float) -> None:
    directory = Path(tempfile.mkdtemp(prefix="showcase-"))
    async with showcase(directory) as stage, async_playwright() as driver:
        traffic = asyncio.create_task(_traffic(stage))
        await asyncio.sleep(seconds)
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            await _documentation(browser, stage, pictures)
            if every is not None:
                for scheme, width in (("light", WIDTH), ("dark", WIDTH), ("light", 390)):
                    await _every_page(browser, stage, every, scheme, width)
        finally:
            traffic.cancel()
            await browser.close()
    shutil.rmtree(directory, ignore_errors=True)


async def _traffic(stage: Showcase) -> None:
    while True:
        await stage.chats()


async def _documentation(browser: Browser, stage: Showcase, pictures: Path) -> None:
    page = await _entered(browser, stage, "light", WIDTH)
    for name, height in SHOWN.items():
        await _show(page, name)
        await _picture(page, pictures / f"console-{name}.png", height)
    await _show(page, f"requests/{await _slowest(stage)}")
    await page.get_by_text("Ranking of the workers").wait_for()
    await _picture(page, pictures / "console-request.png", 1000)
    await page.goto(f"{stage.url}/ui/")
    await page.get_by_label("API key").fill(stage.keys["acme"])
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("heading", name="Requests").wait_for()
    await asyncio.sleep(1)
    await _picture(page, pictures / "tenant.png", 900)
    await page.close()


async def _slowest(stage: Showcase) -> str:
    """Return the id of the slowest request whose worker the policy in force chose."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.get(f"{stage.admin}/admin/v1/requests?limit=200") as answer:
            found = (await answer.json())["data"]
    chosen = [each for each in found if not each["by_shadow"] and each["cached_tokens"]]
    return str(max(chosen or found, key=lambda each: each["ms"])["id"])


async def _every_page(browser: Browser, stage: Showcase, every: Path, scheme: str, width: int) -> None:
    page = await _entered(browser, stage, scheme, width)
    for name in PAGES:
        await _show(page, name)
        shot = every / f"{name.replace('/', '-')}-{scheme}-{width}.png"
        await page.screenshot(path=shot, full_page=True)
    await page.close()


async def _entered(browser: Browser, stage: Showcase, scheme: str, width: int) -> Page:
    """Return a tab with the console, signed in."""
    dark = scheme == "dark"
    context = await browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    page = await context.new_page()
    await page.goto(f"{stage.admin}/ui/?token={TOKEN}")
    await page.wait_for_selector("#main h2")
    return page


async def _show(page: Page, name: str) -> None:
    await page.evaluate(f"location.hash = {name!r}")
    await asyncio.sleep(4)


async def _picture(page: Page, file: Path, height: int) -> None:
    """Write a picture of the page, of this height."""
    await page.set_viewport_size({"width": WIDTH, "height": height})
    await asyncio.sleep(1)
    await page.screenshot(path=file)
    await asyncio.to_thread(_make_small, file)


def _make_small(file: Path) -> None:
    """Reduce the picture to few colours."""
    with Image.open(file) as image:
        few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)
    print(f"{file}  {file.stat().st_size // 1024} kB", flush=True)


if __name__ == "__main__":
    main()
