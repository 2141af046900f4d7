"""A new admin's scenario: fund, make a key, limit it, run into the limit, read why, lift it, look.

Run three times: by `gatewayctl` only, by `kubectl` only, and by REST with a management key only,
which is given an account that has money, since nothing on REST adds any. Each line is a command
that is in the docs.
"""

import asyncio
import base64
import json
import re
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from gateway_cli.__main__ import app
from gateway_core.billing.windows import Buckets, find_reset
from tests.servers.tenants import describe, describe_account, make_key, unique, wait_status
from tests.servers.world import wait_for

PRICE_CENTS = 18
"""Of three seconds of the simulated model."""
LIMIT_CENTS = 20
NAMES_OF_WHY = ("Limit", "Used", "Resets")


class ByGatewayctl:
    """Everything by `gatewayctl`: with kubectl credentials, and the call with the key."""

    def __init__(self, world):
        self._world = world
        self._account = unique("ctl")
        self._key = ""

    async def _run(self, *words, code=0, **env):
        runner = CliRunner(env={**self._world.env, **env})
        done = await asyncio.to_thread(runner.invoke, app, [str(word) for word in words])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    async def fund(self):
        await self._run("accounts", "create", self._account, "--owner-email", "ann@example.com")
        await self._run("fund", self._account, "10", "--reference", "invoice-1")

    async def make_key(self):
        made = await self._run("keys", "create", self._account, "--name", "CI", "-o", "json")
        document = json.loads(made.stdout)
        self._key = document["name"]
        return document["secret"]

    async def set_limit(self, cents):
        limit = ("keys", "limit", "set", self._key, f"0.{cents:02d}")
        await self._run(*limit, "--window", "weekly")

    async def call(self, secret):
        words = (
            "tasks",
            "create",
            "--prompt",
            "A lighthouse",
            "--image",
            "https://example.com/l.png",
        )
        done = await asyncio.to_thread(
            CliRunner(env={**self._world.env, "GATEWAY_API_KEY": secret}).invoke,
            app,
            [*words, "--field", "duration_seconds=3"],
        )
        return {0: 202, 4: 429}[done.exit_code], done.stderr

    async def read_why(self, taken):
        shown = (await self._run("keys", "describe", self._key)).stdout
        # nothing resets while nothing is used: the line comes with the first charge
        said = [re.findall(rf"^{name} +(.+?) *$", shown, re.M) for name in NAMES_OF_WHY]
        return said == [["0.20 weekly"], [to_dollars(taken)], [next_monday()]]

    async def lift(self):
        await self._run("keys", "limit", "clear", self._key)

    async def read_usage(self):
        words = ("usage", self._account, "--by", "key", "--by", "model")
        found = json.loads((await self._run(*words, "-o", "json")).stdout)
        [row] = found["items"]
        assert row["key"] == self._key
        return row["requests"], row["cost"]

    async def leave(self):
        """Nothing is open."""


class ByRest:
    """Everything by REST with a management key, and the call with the key that it makes."""

    def __init__(self, world):
        self._world = world
        self._account = unique("rest")
        self._id = ""
        self._client = None

    async def fund(self):
        self._world.apply(describe_account(self._account))
        manager = make_key(self._world, self._account, "Management")
        self._client = self._world.client(manager.plaintext, self._account)
        await self._client.__aenter__()
        await wait_status(self._client, 200, "/api/v1/management/keys")

    async def _ask(self, method, path, status, body=None):
        answer = await self._client.request(method, f"/api/v1/management{path}", body=body)
        assert answer.status == status, answer.raw
        return answer.body

    async def make_key(self):
        made = await self._ask("POST", "/keys", 201, {"name": "CI"})
        self._id = made["id"]
        return made["secret"]

    async def set_limit(self, cents):
        change = {"limit_cents": cents, "limit_window": "weekly"}
        await self._ask("PATCH", f"/keys/{self._id}", 200, change)

    async def call(self, secret):
        return await post_task(self._client, secret)

    async def read_why(self, taken):
        key = await self._ask("GET", f"/keys/{self._id}", 200)
        shown = (key["limit_cents"], key["limit_window"], key["used_cents"], key["reset_at"])
        return shown == (LIMIT_CENTS, "weekly", taken * PRICE_CENTS, next_monday())

    async def lift(self):
        nothing = {"limit_cents": None, "limit_window": None}
        await self._ask("PATCH", f"/keys/{self._id}", 200, nothing)

    async def read_usage(self):
        found = await self._ask("GET", "/usage?group_by=key,model", 200)
        [row] = found["data"]
        assert row["key_id"] == self._id
        return row["requests"], f"{row['cost_micros'] / 1e6:.2f}"

    async def leave(self):
        await self._client.__aexit__()


class ByKubectl:
    """Everything by `kubectl`, the key made by the operator; the call with any HTTP client."""

    def __init__(self, world):
        self._world = world
        self._account = unique("kube")
        self._key = unique("key")
        self._client = world.client(account=self._account)

    async def fund(self):
        await self._client.__aenter__()
        self._world.apply(describe_account(self._account, funds={"paidMicros": 10_000_000}))

    async def make_key(self):
        secret = f"{self._key}-secret"
        spec = {"accountName": self._account, "displayName": "CI", "secretName": secret}
        self._world.apply(describe("Key", self._key, spec))
        wait = ("wait", "--for=condition=Ready", "--timeout=30s", f"gwkey/{self._key}")
        await asyncio.to_thread(self._kubectl, *wait)
        path = "-o=jsonpath={.data.api-key}"
        return base64.b64decode(self._kubectl("get", "secret", secret, path)).decode().strip()

    def _kubectl(self, *words):
        return self._world.run.kubectl(*words)

    def _patch(self, limit):
        patch = json.dumps({"spec": {"limit": limit}})
        self._kubectl("patch", "gwkey", self._key, "--type=merge", "-p", patch)

    async def set_limit(self, cents):
        self._patch({"micros": cents * 10_000, "window": "weekly"})

    async def call(self, secret):
        return await post_task(self._client, secret)

    async def read_why(self, taken):
        spec = json.loads(self._kubectl("get", "gwkey", self._key, "-o=json"))["spec"]
        row = "{.status.spent[*].subject} {.status.spent[*].chargedMicros}"
        spent = f"key/{self._key} {taken * PRICE_CENTS * 10_000}"
        limit = LIMIT_CENTS * 10_000
        return spec["limit"]["micros"] == limit and await self._read_usage(row) == spent

    async def lift(self):
        self._patch(None)

    async def read_usage(self):
        row = await self._read_usage("{.status.rows[*].keyName} {.status.requests} {.status.cost}")
        key, requests, cost = row.split(" ")
        assert key == self._key
        return int(requests), cost

    async def _read_usage(self, path):
        name = f"{self._account}-{datetime.now(UTC):%Y-%m-%d}"
        words = ("get", "gwusage", name, "--ignore-not-found", f"-o=jsonpath={path}")
        return await asyncio.to_thread(self._kubectl, *words)

    async def leave(self):
        await self._client.__aexit__()


async def post_task(client, secret):
    """A create with the key: its status and what the answer says."""
    answer = await client.request(
        "POST", client.tasks_path, key=secret, body=client.body(duration_seconds=3)
    )
    return answer.status, answer.raw.decode()


def next_monday():
    """When a weekly limit resets, as it is printed."""
    return find_reset(Buckets(), "weekly", datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_dollars(calls):
    """What so many calls cost."""
    return f"{calls * PRICE_CENTS // 100}.{calls * PRICE_CENTS % 100:02d}"


@pytest.mark.full
@pytest.mark.usefixtures("one_day")
@pytest.mark.parametrize("way", [ByGatewayctl, ByRest, ByKubectl])
async def test_a_new_admin_limits_a_key_runs_into_it_and_lifts_it(world, way):
    admin = way(world)
    await admin.fund()
    secret = await admin.make_key()
    world.secrets.add(secret)
    await admin.set_limit(LIMIT_CENTS)
    async with world.client(secret) as anybody:
        await wait_status(anybody, 200)
    taken, refusals = 0, list[str]()

    async def ask():
        nonlocal taken
        status, text = await admin.call(secret)
        assert status in (202, 429), text
        if status == 202:
            taken += 1
        else:
            refusals.append(text)
        return status

    async def is_told():
        try:
            return await admin.read_usage() == (taken, to_dollars(taken))
        except ValueError:
            return False

    assert await ask() == 202
    # a replica may learn of the limit after the key
    await wait_for(lambda: _is(ask, 429), seconds=6, what="the limit")
    assert "The credit limit of this key, 0.20 USD a week" in refusals[0]
    await wait_for(lambda: admin.read_why(taken), seconds=30, what="the reason")
    await admin.lift()
    await wait_for(lambda: _is(ask, 202), seconds=6, what="the lifted limit")
    await wait_for(is_told, seconds=30, what="the usage")
    await admin.leave()


async def _is(ask, status):
    return await ask() == status
