"""docs/pictures/console-*.png: pages of the console in Chromium, of an account with a history."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import oxipng
from playwright.async_api import Browser, Page, async_playwright, expect
from tools.pictures.load import LARGE, SLOW, VIDEO
from tools.pictures.studio import ACCOUNT, USER_EMAIL, open_studio
from tools.programs import find_program

WIDTH = 1280
SCALE = 1.5
"""Pixels of the picture for one of the page: readable where a document shows it smaller."""
LOAD_SECONDS = 15
_PATIENCE_MS = 60_000
"""For a page to show what it waits for, on a busy machine."""
_MESSAGE = "Welcome our new customers with one short sentence."


async def draw_console() -> dict[str, bytes]:
    """Return the PNG files by name."""
    async with open_studio() as studio, open_chromium() as chromium:
        load, base_url = studio.load, studio.run.config.base_url
        await load.run(LOAD_SECONDS)
        for _ in range(2):
            await load.create_task("SHOP", VIDEO, SLOW)
        page = await chromium.new_page(device_scale_factor=SCALE)
        await _sign_in(page, base_url, studio.password)
        home = f"{base_url}/console/{ACCOUNT}"
        await _open_overview(page, home)
        files = {"console-overview.png": await _take(page, 1020)}
        await _open_task(page, f"{home}/tasks/{await load.find_completed()}")
        files["console-task.png"] = await _take(page, 1180)
        await page.emulate_media(color_scheme="dark")
        await _chat(page, f"{home}/playground")
        files["console-playground.png"] = await _take(page, 1180)
        return files


@asynccontextmanager
async def open_chromium() -> AsyncIterator[Browser]:
    """Yield a headless Chromium."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_program("chromium"),
            # Chromium has no sandbox for root
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        try:
            yield browser
        finally:
            await browser.close()


async def _sign_in(page: Page, base_url: str, password: str) -> None:
    await page.goto(base_url)
    await page.get_by_label("Email address").fill(USER_EMAIL)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(
        "Overview", timeout=_PATIENCE_MS
    )


async def _open_overview(page: Page, home: str) -> None:
    await page.goto(home)
    await expect(page.locator("svg.plot")).to_have_count(2, timeout=_PATIENCE_MS)


async def _open_task(page: Page, address: str) -> None:
    await page.goto(address)
    await expect(page.get_by_role("main")).to_contain_text("Delivered", timeout=_PATIENCE_MS)
    # a frame of the middle, as one sees it while it plays
    await page.locator("video").evaluate(
        "video => new Promise(shown => {"
        "  video.addEventListener('seeked', shown, {once: true}); video.currentTime = 1.2})"
    )


async def _chat(page: Page, address: str) -> None:
    await page.goto(address)
    await page.get_by_label("Language model").select_option(LARGE)
    await page.get_by_label("Message").fill(_MESSAGE)
    await page.get_by_role("button", name="Send").click()
    answer = f"You said: {_MESSAGE}"
    await expect(page.get_by_role("main")).to_contain_text(answer, timeout=_PATIENCE_MS)


async def _take(page: Page, height: int) -> bytes:
    await page.set_viewport_size({"width": WIDTH, "height": height})
    return shrink(await page.screenshot(animations="disabled"))


def shrink(png: bytes) -> bytes:
    """Return the same picture in fewer bytes, without what tells of its making."""
    return oxipng.optimize_from_memory(png, level=4, strip=oxipng.StripChunks.all())
