"""Usage with its CSV, batches with their output, files and members in the console."""

import csv
import json

import pytest
from playwright.async_api import expect

from tests.integration.console.conftest import check_fits, expect_marked, picture
from tests.integration.console.site import HOSTILE
from tests.integration.sdk import MODERATION_MODEL, open_openai

pytestmark = [pytest.mark.full, pytest.mark.asyncio(loop_scope="session")]


async def test_owner_reads_usage_and_downloads_it(people, visit):
    wide = {"width": 1280, "height": 900}
    page = await visit("owner", f"/console/{people.account}/usage", viewport=wide)
    await expect(page.locator("svg.plot")).to_have_count(2)
    await expect(page.get_by_role("heading", name="Balance and funds")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="sim-q4-reference-to-video")
    await expect(row).to_contain_text("$")
    await check_fits(page)
    await picture(page, "light-usage")
    async with page.expect_download() as waiting:
        await page.get_by_role("link", name="Download as CSV").click()
    path = await (await waiting.value).path()
    with path.open() as file:
        rows = list(csv.DictReader(file))
    spent = sum(float(row["cost_usd"]) for row in rows)
    assert spent >= 0.42
    assert {row["operation"] for row in rows} >= {"sim/reference_to_video"}
    await page.goto(f"{people.home}/usage?start=2020-01-01")
    await expect_marked(page.get_by_label("To"), "To must be at most 92 days after “From”.")
    page.complaints.clear()


async def test_batch_is_made_and_its_output_downloaded(people, visit):
    async with open_openai(people.client) as sdk:
        lines = [
            {
                "custom_id": HOSTILE[:40] + str(index),
                "method": "POST",
                "url": "/v1/moderations",
                "body": {"model": MODERATION_MODEL, "input": "hello"},
            }
            for index in range(3)
        ]
        data = "\n".join(map(json.dumps, lines)).encode()
        file = await sdk.files.create(file=(HOSTILE[:60], data), purpose="batch")
    page = await visit("member", f"/console/{people.account}/batches")
    await page.get_by_text("New batch", exact=True).first.click()
    await page.get_by_label("File id").fill(file.id)
    await page.get_by_role("button", name="Run the batch").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("batch_")
    await page.evaluate("window.unchanged = true")
    output = page.get_by_role("link", name="Output file")
    await expect(output).to_be_visible(timeout=60_000)
    assert await page.evaluate("window.unchanged")
    await expect(page.get_by_role("main")).to_contain_text("3 of 3")
    await check_fits(page)
    await picture(page, "light-batch")
    async with page.expect_download() as waiting:
        await page.get_by_role("link", name="Output file").click()
    path = await (await waiting.value).path()
    assert len(path.read_text().splitlines()) == 3
    await page.goto(f"{people.home}/batches")
    await picture(page, "light-batches")
    await page.goto(f"{people.home}/files?purpose=batch")
    await picture(page, "light-files")
    await page.get_by_role("link", name="<img").click()
    await page.get_by_text("Delete", exact=True).click()
    await page.get_by_role("button", name="Delete the file").click()
    await expect(page.get_by_role("status")).to_have_text("Deleted.")


async def upload(page, name, data, purpose="user_data: for prompts"):
    await page.locator("summary", has_text="Upload a file").click()
    await page.get_by_label("Purpose").first.select_option(purpose)
    await page.get_by_label("File", exact=True).set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    )
    await page.get_by_role("button", name="Upload").click()


@pytest.mark.parametrize("scripts", [True, False])
async def test_file_is_uploaded_and_downloaded(people, visit, scripts):
    page = await visit("member", java_script_enabled=scripts)
    await page.goto(f"{people.home}/files")
    data = bytes(range(256)) * 4096
    name = HOSTILE[:60]
    await upload(page, name, data)
    await expect(page.get_by_role("status")).to_have_text("The file is stored.")
    await expect(page.get_by_role("main")).to_contain_text("1.0 MiB")
    async with page.expect_download() as waiting:
        await page.get_by_role("link", name="Download").click()
    assert (await (await waiting.value).path()).read_bytes() == data


async def test_upload_is_refused_with_the_reason(people, visit):
    page = await visit("member", f"/console/{people.account}/files")
    await upload(page, "empty.jsonl", b"", "batch: requests of a batch")
    await expect_marked(page.get_by_label("File", exact=True), "File must not be empty.")
    page.complaints.clear()
    await page.goto(f"{people.home}/files")
    await page.evaluate("document.querySelector('[data-most]').dataset.most = 3")
    await upload(page, "large.bin", b"12345")
    field = page.get_by_label("File", exact=True)
    assert await field.evaluate("e => e.validationMessage") == "The file is too large."
    assert page.url == f"{people.home}/files"
    await page.evaluate("document.querySelector('form[enctype]').action += 'x'")
    await field.set_input_files({"name": "a", "mimeType": "text/plain", "buffer": b"a"})
    await page.get_by_role("button", name="Upload").click()
    await expect(page.get_by_role("alert")).to_contain_text("This form is no longer valid")
    page.complaints.clear()


async def test_admin_reads_members(people, visit):
    narrow = {"width": 320, "height": 700}
    page = await visit("admin", f"/console/{people.account}/members", viewport=narrow)
    await expect(page.get_by_role("row")).to_have_count(5)
    await check_fits(page)
    await picture(page, "narrow-members")
