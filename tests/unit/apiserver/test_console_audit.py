"""What views of the audit page cost."""

import asyncio
from typing import Any

import pytest

from gateway_apiserver.surfaces.console import audit
from tests.unit.apiserver.browsing import AppBrowser, enter, put_person
from tests.unit.apiserver.gateway import Gateway


@pytest.fixture
async def browser(gateway: Gateway) -> AppBrowser:
    put_person(gateway, "ann", demo="owner")
    return await enter(gateway, "ann")


async def test_search_is_sent_on_submit_alone(browser: AppBrowser) -> None:
    page = await browser.get("/console/demo/audit?word=gone")
    assert page.status == 200
    form = page.form("/console/demo/audit")
    assert (form.method, form.fields) == ("get", {"word": "gone"})
    assert "hx-trigger" not in page.body


async def test_views_of_an_account_read_the_store_in_turn(
    browser: AppBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, most = 0, 0

    async def list_slowly(*_: Any) -> list[Any]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0.02)
        reading -= 1
        return []

    monkeypatch.setattr(audit, "list_removed", list_slowly)
    pages = await asyncio.gather(*(browser.get("/console/demo/audit") for _ in range(5)))
    assert [page.status for page in pages] == [200] * 5
    assert most == 1
