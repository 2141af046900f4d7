"""Platform Management on the real record: two API processes, restarts, kubectl, and its guide."""

import asyncio
import json
import re
import shlex
import string
from pathlib import Path

import pytest

from tests.servers.replica import Replica
from tests.servers.tenants import describe, make_key, open_tenant, wait_status
from tests.servers.world import wait_for

ROOT = "/api/v1/management"
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "management.md"


@pytest.fixture(scope="module")
def second(world):
    """Another API process."""
    with Replica(world, "api") as replica:
        yield replica


@pytest.fixture
async def governor(world, second):
    """A client with a management key of an account of its own, which both processes know."""
    async with open_tenant(world) as client:
        key = make_key(world, client.account, "Management")
        async with world.client(key.plaintext, client.account) as own:
            for base in (None, second.base_url):
                await wait_status(own, 200, f"{ROOT}/keys", base=base)
            own.standard_key = client.key
            yield own


async def make(client, path="/keys", *, base=None, idempotency_key=None, **body):
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
    answer = await client.request(
        "POST", ROOT + path, headers=headers, body={"name": "one", **body}, base=base
    )
    assert answer.status in (201, 409), answer.raw
    if answer.status == 201 and answer.body.get("secret"):
        client.world.secrets.add(answer.body["secret"])
    return answer


async def opens(client, secret, base=None):
    answer = await client.request("GET", "/api/v1/me", key=secret, base=base)
    return answer.status == 200


def read_keys(world, account):
    text = world.run.kubectl(
        "get", "gatewaykeys", f"--field-selector=spec.accountName={account}", "-o", "json"
    )
    return json.loads(text)["items"]


async def test_key_changes_count_at_two_processes(world, second, governor):
    """What one has answered is in force there at once, and at the other within five seconds."""
    here, there = world.env["GATEWAY_BASE_URL"], second.base_url
    made = (await make(governor, base=there, limit_cents=500, limit_window="1d")).body
    path = f"{ROOT}/keys/{made['id']}"
    assert await opens(governor, made["secret"], there)
    assert (await governor.request("GET", path, base=here)).body["name"] == "one"
    await wait_for(lambda: opens(governor, made["secret"], here), seconds=5, what="known here")
    rotated = await governor.request(
        "POST", path + "/rotate", body={"overlap_seconds": 600}, base=there
    )
    secret = rotated.body["secret"]
    world.secrets.add(secret)
    assert await opens(governor, secret, there)
    assert await opens(governor, made["secret"], there)
    await wait_for(lambda: opens(governor, secret, here), seconds=5, what="rotated here")
    world.run.kubectl(
        *("annotate", "gatewaykey", made["id"].replace("_", "-", 1), "example.com/seen=yes")
    )
    revoked = await governor.request("DELETE", path, base=there)
    assert revoked.status == 200
    assert not await opens(governor, secret, there)

    async def is_shut():
        return not await opens(governor, secret, here)

    await wait_for(is_shut, seconds=5, what="revoked here")
    shown = (await governor.request("GET", path, base=here)).body
    assert (shown["status"], shown["limit_cents"]) == ("revoked", 500)
    assert shown["updated_at"] >= shown["created_at"]
    again = await governor.request("DELETE", path, base=here)
    assert (again.status, again.body) == (200, revoked.body)


@pytest.mark.full
async def test_idempotency_key_makes_one_key_at_two_processes_and_after_restart(
    world, second, governor
):
    bases = (world.env["GATEWAY_BASE_URL"], second.base_url)
    body = {"idempotency_key": "same", "name": "x", "limit_cents": 5, "limit_window": "weekly"}
    before = len(read_keys(world, governor.account))
    answers = await asyncio.gather(*(make(governor, base=bases[n % 2], **body) for n in range(20)))
    assert {answer.status for answer in answers} == {201}
    told = [answer.body for answer in answers]
    assert len({key["id"] for key in told}) == 1
    assert sum(key["secret"] is not None for key in told) == 1
    assert len(read_keys(world, governor.account)) == before + 1
    rotate = f"{ROOT}/keys/{told[0]['id']}/rotate"
    headers = {"Idempotency-Key": "turn"}
    turned = await governor.request("POST", rotate, headers=headers, base=bases[1])
    world.secrets.add(turned.body["secret"])
    second.kill()
    second.start()
    second.wait_ready()
    # connections of before are to a process that is no more
    async with world.client(governor.key, governor.account) as fresh:
        replay = await make(fresh, base=bases[1], **body)
        assert replay.headers["Idempotent-Replayed"] == "true"
        assert replay.body == {**told[0], "secret": None}
        replay = await fresh.request("POST", rotate, headers=headers, base=bases[1])
        assert replay.headers["Idempotent-Replayed"] == "true"
        assert replay.body["secret"] is None
        assert await opens(fresh, turned.body["secret"], bases[1])
        other = await make(fresh, base=bases[1], **{**body, "name": "y"})
        assert other.status == 409


async def test_concurrent_guardrails_with_one_name_at_two_processes_make_one(
    world, second, governor
):
    bases = (world.env["GATEWAY_BASE_URL"], second.base_url)
    calls = [make(governor, "/guardrails", base=bases[n % 2], name="pool") for n in range(8)]
    answers = await asyncio.gather(*calls)
    assert sorted(answer.status for answer in answers) == [201] + [409] * 7
    listed = (await governor.request("GET", f"{ROOT}/guardrails")).body["data"]
    assert [guardrail["name"] for guardrail in listed] == ["pool"]


async def test_every_field_is_taken_by_the_record_and_kubectl_sees_it(world, governor):
    fields = {
        "expires_at": "2999-01-02T03:04:05.678+02:00",
        "limit_cents": 700,
        "limit_window": "7d",
        "rpm_limit": 7,
        "allowed_models": ["sim-*"],
        "allowed_providers": [],
        "metadata": {"a b": "ü", "": "x"},
    }
    refused = await governor.request("POST", f"{ROOT}/keys", body={"name": "n", **fields})
    assert refused.status == 400
    fields["metadata"].pop("")
    made = (await make(governor, name="whole", **fields)).body
    assert {name: made[name] for name in fields} == {**fields, "expires_at": "2999-01-02T01:04:05Z"}
    path = f"{ROOT}/keys/{made['id']}"
    cleared = await governor.request("PATCH", path, body=dict.fromkeys(fields))
    assert cleared.status == 200
    empty = {**dict.fromkeys(fields), "metadata": {}}
    assert {name: cleared.body[name] for name in fields} == empty
    name = made["id"].replace("_", "-", 1)
    assert world.read("gatewaykey", name)["spec"]["displayName"] == "whole"
    pool = {
        "description": "d",
        "limit_cents": 1,
        "limit_window": "lifetime",
        "rpm_limit": 1,
        "allowed_models": ["x*"],
        "denied_models": ["xy"],
        "allowed_providers": ["y"],
        "denied_providers": [],
    }
    guardrail = (await make(governor, "/guardrails", name="pool", **pool)).body
    assert {name: guardrail[name] for name in pool} == pool
    declared = {
        "accountName": governor.account,
        "displayName": "by kubectl",
        "keyNames": [name],
    }
    world.apply(describe("Guardrail", f"grd-{governor.account}", declared))
    shown = (await governor.request("GET", f"{ROOT}/guardrails/grd_{governor.account}")).body
    assert (shown["name"], shown["assigned_key_count"]) == ("by kubectl", 1)
    world.patch("gatewaykey", name, {"displayName": "renamed"})
    shown = (await governor.request("GET", path)).body
    assert (shown["name"], shown["guardrail_ids"]) == ("renamed", [f"grd_{governor.account}"])


async def test_usage_has_a_task_once_before_and_after_it_is_folded(world, governor):
    async with world.client(governor.standard_key, governor.account) as client:
        task = (await client.create(duration_seconds=3)).body["id"]
        await client.wait_terminal([task])
        report = f"{ROOT}/usage?group_by=key,model,operation,day"
        rows = (await governor.request("GET", report)).body["data"]
        assert [(row["requests"], row["cost_cents"]) for row in rows] == [(1, 18)]
        assert rows[0]["operation"] == f"{client.service}/reference_to_video"
        name = task.replace("_", "-", 1)

        def is_aggregated():
            labels = world.read("gatewaytask", name)["metadata"]["labels"]
            return "modelgateway.dev/folded" in labels

        await wait_for(is_aggregated, what="the fold")
        assert (await governor.request("GET", report)).body["data"] == rows
        key_id = rows[0]["key_id"]

        async def is_told():
            shown = (await governor.request("GET", f"{ROOT}/keys/{key_id}")).body
            return shown["used_cents"] == 18

        await wait_for(is_told, what="the key's budget")


async def test_examples_of_the_guide_work_as_they_are(world, governor):
    """Each curl of the guide in its order, with the ids that its own calls have made."""
    values = {
        "GATEWAY_BASE_URL": world.env["GATEWAY_BASE_URL"],
        "GATEWAY_MANAGEMENT_KEY": governor.key,
    }
    commands = re.findall(r"^    (curl (?:.*\\\n)*(?:.|\n(?=      ))*)$", GUIDE.read_text(), re.M)
    assert len(commands) == 11
    statuses = []
    for command in commands:
        text = string.Template(command.replace("'$KEY_ID'", "$KEY_ID")).substitute(values)
        answer = await run_curl(governor, shlex.split(text.replace("\\\n", " ")))
        statuses.append(answer.status)
        body = answer.body
        if body.get("secret"):
            world.secrets.add(body["secret"])
        if answer.status == 201:
            kind = "KEY_ID" if body["object"] == "api_key" else "GUARDRAIL_ID"
            values[kind] = body["id"]
    assert statuses == [201, 200, 200, 200, 201, 200, 200, 200, 200, 200, 200]


async def run_curl(client, words):
    """The one request that a curl command makes; of its options, those the guide uses."""
    assert words.pop(0) == "curl"
    method, headers, data, url = None, {}, None, None
    while words:
        word = words.pop(0)
        if word == "-X":
            method = words.pop(0)
        elif word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-d":
            data = words.pop(0).encode()
        elif word != "-s":
            assert url is None
            url = word
    method = method or ("GET" if data is None else "POST")
    path = url.removeprefix(client.world.env["GATEWAY_BASE_URL"])
    return await client.request(method, path, headers=headers, data=data, key=None)
