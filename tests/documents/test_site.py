"""The documents as a site (`make site`): every page has a place, and no other site is asked."""

import functools
import http.server
import itertools
import os
import threading

import pytest
from playwright.async_api import async_playwright
from tools.programs import find_program
from tools.site import NAVIGATION, ROOT, build, find_problems

CUT_LINES = """
() => [...document.querySelectorAll("pre > code")]
    .filter(code => code.scrollWidth > code.clientWidth)
    .map(code => code.innerText)
"""
"""Blocks of code of which a reader has to move a part into sight."""


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The folder of the built site; the build fails on a broken link."""
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def origin(html):
    """The site on a server of files."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=html)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="gone/">x</a>', "index.html names gone/, which does not exist"),
        ('<img alt="" src="gone.svg"/>', "index.html names gone.svg, which does not exist"),
        (
            '<script defer src="https://cdn.example.com/a.js"></script>',
            "index.html loads https://cdn.example.com/a.js",
        ),
        (
            '<link rel="stylesheet" href="//fonts.example.com/a.css">',
            "index.html loads //fonts.example.com/a.css",
        ),
    ],
)
def test_broken_link_or_foreign_asset_is_a_problem(tmp_path, text, problem):
    (tmp_path / "index.html").write_text(f'<h1 id="top">x</h1><a href="#top">top</a>{text}')
    assert find_problems(tmp_path) == [problem]


async def test_browser_searches_and_asks_no_other_site(origin):
    asked, complaints = [], []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_program("chromium"),
            # Chromium has no sandbox for root
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        page = await browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(origin)
        tabs = await page.locator(".md-tabs").get_by_role("link").all_inner_texts()
        assert [tab.strip() for tab in tabs] == list(NAVIGATION)
        # a picture that moves would begin with an empty terminal
        assert "animat" not in (ROOT / "docs/pictures/demo.svg").read_text()
        scheme = page.locator("body")
        before = await scheme.get_attribute("data-md-color-scheme")
        await page.get_by_title("Switch to", exact=False).locator("visible=true").click()
        assert await scheme.get_attribute("data-md-color-scheme") != before
        await page.keyboard.press("Control+k")
        await page.keyboard.type("webhook signature")
        await page.get_by_role("link", name="Callbacks").first.wait_for()
        for path, width in itertools.product(("", "docs/operations/production/"), (1280, 400)):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto(f"{origin}/{path}")
            assert await page.evaluate(CUT_LINES) == [], (path, width)
        await browser.close()
    assert not complaints
    assert [url for url in asked if not url.startswith(origin + "/")] == []
