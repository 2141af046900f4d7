"""An account that is deleted and made again has nothing of the first, over kill -9 of the operator.

Keys, sign-in, grants, files, Uploads, tasks, batches, guardrails, money and usage are of the first.
"""

import json

import pytest

from gateway_core.accounts.passwords import generate_password, hash_password
from tests.crash.history import wait_charged
from tests.crash.steps import REMAINS, choose
from tests.crash.storage import Uploading, create_file
from tests.servers.browser import Browser
from tests.servers.tenants import (
    describe_account,
    describe_guardrail,
    describe_key,
    describe_user,
    make_key,
    open_tenant,
    read_balance,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import World, wait_for

pytestmark = [pytest.mark.timeout(240)]

STEPS = choose("operator", REMAINS)
OWNED = (
    *("gatewaykeys", "gatewaygrants", "gatewayguardrails", "gatewayusages"),
    *("gatewaytasks", "gatewaybatches", "gatewayfiles", "gatewayuploads"),
)
SLOW = {"behaviour": "seconds", "seconds": 600, "match": {"prompt_contains": "slow"}}


def list_owned(world: World, account: str) -> dict[str, list[str]]:
    """Names of the account's objects by kind, and of its bytes."""
    found: dict[str, list[str]] = {}
    for plural in OWNED:
        items = json.loads(world.run.kubectl("get", plural, "-o", "json"))["items"]
        names = [
            item["metadata"]["name"]
            for item in items
            if item["spec"].get("request", item["spec"])["accountName"] == account
        ]
        if names:
            found[plural] = names
    store = world.config.store_directory
    found["bytes"] = [
        str(path.relative_to(store))
        for path in store.rglob("*")
        if path.is_file() and account in path.relative_to(store).parts
    ]
    return found


def is_there(world: World, account: str) -> bool:
    names = world.run.kubectl("get", "gatewayaccounts", "-o", "name").split()
    return f"gatewayaccount.modelgateway.dev/{account}" in names


async def test_account_made_again_has_nothing_of_the_first(world, tally):
    told = tally("F29", "operator killed while an account is removed that is then made again")
    async with open_tenant(world) as client:
        account, old_key = client.account, client.key
        password, user = generate_password(), unique("user")
        person = describe_user(user, {account: "owner"}, passwordHash=hash_password(password))
        made, made_object = describe_key(world, account, createdBy=user)
        guard = describe_guardrail(unique("grd"), account, made)
        world.apply(person, made_object, guard)
        await wait_known(client, made.plaintext)
        file = await create_file(client, b"hello")
        await Uploading(client).begin()
        batch_file = await create_file(client, b"no line", purpose="batch")
        batch = await client.request(
            "POST",
            "/v1/batches",
            body={
                "input_file_id": batch_file,
                "endpoint": "/v1/moderations",
                "completion_window": "24h",
            },
        )
        assert batch.status == 200, batch.raw
        ended = await client.create_surely("again")
        await wait_charged(client, (await client.wait_terminal([ended]))[ended])
        await client.simulate(SLOW)
        running = (await client.create(prompt="slow")).body["id"]

        async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
            await browser.sign_in(person["spec"]["email"], password)
            assert (await browser.get("/settings")).status == 200

            async with told.trial(client, count=len(STEPS)):
                uid = world.read("gatewayaccount", account)["metadata"]["uid"]
                for step in STEPS:
                    world.restart_doomed("operator", {"GATEWAY_FAILPOINTS": step})
                    if step == STEPS[0]:
                        world.run.kubectl("delete", "gatewayaccount", account, "--wait=false")
                        for key in (old_key, made.plaintext):
                            await wait_status(client, 401, key=key)
                    await wait_for(lambda: not world.is_alive("operator"), what="death", seconds=60)
                    assert is_there(world, account)
                world.run.restart("operator", {})
                await wait_for(lambda: not is_there(world, account), what="the removal", seconds=60)

                left = list_owned(world, account)
                folder = f"closed/{account}/{uid}/"
                assert left.keys() == {"bytes"}, left
                assert left["bytes"]
                assert all(name.startswith(folder) for name in left["bytes"]), left

                world.apply(describe_account(account))
                new = make_key(world, account)
                await wait_known(client, new.plaintext)
                client.key = new.plaintext
                for key in (old_key, made.plaintext):
                    assert (await client.request("GET", "/api/v1/me", key=key)).status == 401
                for path in (
                    f"/v1/files/{file}",
                    f"/v1/files/{file}/content",
                    f"/v1/batches/{batch.body['id']}",
                    f"{client.tasks_path}/{ended}",
                    f"{client.tasks_path}/{running}",
                ):
                    assert (await client.request("GET", path)).status == 404, path
                for path in ("/v1/files", "/v1/batches"):
                    assert (await client.request("GET", path)).body["data"] == []
                assert await read_balance(client) == {
                    "balance_cents": 10_000,
                    "paid_balance_cents": 10_000,
                    "bonus_balance_cents": 0,
                    "spent_cents_today": 0,
                    "spent_cents_total": 0,
                }
                await client.simulate()
                again = await client.create_surely("again")
                body = (await client.wait_terminal([again]))[again]
                assert body["status"] == "completed"
                # the id is that of the key, so the task itself has to be another
                assert len(list_owned(world, account)["gatewaytasks"]) == 1
                await wait_charged(client, body)

                # the user is one still, with no role in the account
                page = await browser.get(f"/console/{account}")
                assert page.status in (303, 403, 404), page.status
                world.run.kubectl("delete", "gatewayuser", user)
                world.apply(person)
                assert (await browser.get("/settings")).status == 303
    told.check()
