"""Usage with its CSV, batches with their output, files and members in the console."""

import csv
import json

import pytest
from openai import AsyncOpenAI
from playwright.async_api import expect

from gateway_core.accounts.passwords import hash_password
from tests.integration.batches.test_openai_client import MODEL
from tests.integration.console.conftest import HOSTILE, check_fits, picture
from tests.servers.tenants import describe_user, unique

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
    await expect(page.get_by_role("alert")).to_contain_text("at most 93 days")
    page.complaints.clear()


async def test_batch_is_made_and_its_output_downloaded(people, visit):
    base = f"{people.base}/v1"
    async with AsyncOpenAI(base_url=base, api_key=people.client.key) as sdk:
        lines = [
            {
                "custom_id": HOSTILE[:40] + str(index),
                "method": "POST",
                "url": "/v1/moderations",
                "body": {"model": MODEL, "input": "hello"},
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
    await expect(output).to_be_visible(timeout=20_000)
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
    await expect(page.get_by_role("status")).to_have_text("It is deleted.")


async def upload(page, name, data, purpose="For prompts"):
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
    await upload(page, "empty.jsonl", b"", "Requests of a batch")
    await expect(page.get_by_role("alert")).to_contain_text("must not be empty")
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


async def test_viewer_may_look_and_not_touch(people, visit):
    page = await visit("viewer", f"/console/{people.account}/batches")
    await expect(page.get_by_text("New batch")).to_have_count(0)
    for section, there in (("Usage", 0), ("Members", 0), ("Files", 1)):
        await expect(page.get_by_role("link", name=section, exact=True)).to_have_count(there)
    for path in ("usage", "usage/csv", "members"):
        answer = await page.request.get(f"{people.home}/{path}")
        assert answer.status == 403
    made = await page.request.post(
        f"{people.home}/batches",
        form={"input_file_id": "file-x", "form_token": "x"},
        headers={"Origin": people.base, "Sec-Fetch-Site": "same-origin"},
    )
    assert made.status == 403


async def test_admin_reads_members(people, visit):
    narrow = {"width": 320, "height": 700}
    page = await visit("admin", f"/console/{people.account}/members", viewport=narrow)
    await expect(page.get_by_role("row")).to_have_count(5)
    await check_fits(page)
    await picture(page, "narrow-members")


async def choose_role(page, name, role):
    await page.locator("summary", has_text="Change a role").click()
    options = page.get_by_label("Member").locator("option")
    label = await options.filter(has_text=name).text_content()
    await page.get_by_label("Member").select_option(label=label)
    await page.get_by_label("New role").select_option(role)
    await page.get_by_role("button", name="Change a role").click()


async def test_roles_change_by_the_matrix(people, visit):
    digest = hash_password(people.password)
    guest = unique("guest")
    people.world.apply(describe_user(guest, {people.account: "viewer"}, passwordHash=digest))
    path = f"/console/{people.account}/members"
    page = await visit("admin", path)
    await expect(page.get_by_role("row").filter(has_text=guest)).to_be_visible()
    await choose_role(page, guest, "owner")
    await expect(page.get_by_role("alert")).to_have_text("Only an owner may do this.")
    await page.goto(people.base + path)
    await choose_role(page, people.names["owner"], "viewer")
    await expect(page.get_by_role("alert")).to_have_text("Only an owner may do this.")
    await page.goto(people.base + path)
    await choose_role(page, guest, "member")
    await expect(page.get_by_role("row").filter(has_text=guest)).to_contain_text("member")
    page.complaints.clear()

    page = await visit("owner", path)
    await choose_role(page, people.names["owner"], "viewer")
    await expect(page.get_by_role("alert")).to_have_text("The account has no other owner.")
    await page.goto(people.base + path)
    await choose_role(page, guest, "owner")
    await expect(page.get_by_role("row").filter(has_text=guest)).to_contain_text("owner")
    page.complaints.clear()
    spec = people.world.read("gatewayuser", guest)["spec"]
    assert spec["memberships"] == [{"accountName": people.account, "role": "owner"}]
    assert spec["passwordHash"] == digest
    people.world.run.kubectl("delete", "gatewayuser", guest, "--wait=false")
