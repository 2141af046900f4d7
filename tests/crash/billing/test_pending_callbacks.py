"""Charges of tasks whose callbacks are still tried: every place shows the same money (I12).

The operator is killed between any two of its steps, and Redis loses its content.
"""

import asyncio
import json
import re

import pytest

from gateway_core.accounts.passwords import generate_password, hash_password
from tests.crash.commands import run_gatewayctl
from tests.crash.history import is_closed
from tests.faults.machine import Stopwatch
from tests.servers.browser import Browser
from tests.servers.mcp import McpCaller
from tests.servers.receivers import Receiver, check_one_event
from tests.servers.tenants import describe_user, make_key, open_tenant, unique
from tests.servers.world import World, list_tasks, wait_for
from tests.shares import IS_WHOLE

pytestmark = [pytest.mark.timeout(300)]

STEPS = ("after-settle", "after-callback-record")
if IS_WHOLE:
    STEPS += ("after-fold", "after-archive")
TASKS_A_STEP = 50 if IS_WHOLE else 8
HIT = 10 if IS_WHOLE else 4
SECONDS = 3
SCHEDULE = ",".join(["0", *["20"] * 30])
MOST_SECONDS = 10
"""From the terminal state until every place shows the charge (I12)."""


@pytest.fixture(scope="module")
def world(control_plane):
    """A gateway with an MCP process."""
    with World(control_plane, mcp=True) as running:
        yield running


class Places:
    """Every place that shows what an account was charged, in micro-dollars."""

    def __init__(self, world, client):
        self.world, self.client = world, client
        self.manager = make_key(world, client.account, "Management").plaintext
        self.user, self.password = unique("user"), generate_password()
        roles = {client.account: "owner"}
        world.apply(describe_user(self.user, roles, passwordHash=hash_password(self.password)))

    async def read_rest(self):
        answer = await self.client.request("GET", "/api/v1/me/balance")
        return answer.body["spent_cents_total"] * 10_000 if answer.status == 200 else answer.raw

    async def read_mcp(self):
        async with McpCaller(self.world.env["GATEWAY_MCP_URL"], self.client.key) as caller:
            status, message = await caller.send("tools/call", {"name": "check_balance"})
        content = message.get("result", {}).get("structuredContent") if status == 200 else None
        return content["spent_cents_total"] * 10_000 if content else message

    async def read_usage_objects(self):
        items = await self._kubectl("get", "gatewayusages")
        return sum(obj.get("status", {}).get("chargedMicros", 0) for obj in items)

    async def read_account_status(self):
        (account,) = await self._kubectl("get", "gatewayaccounts")
        return account.get("status", {}).get("chargedMicros")

    async def read_key_status(self):
        keys = await self._kubectl("get", "gatewaykeys")
        return sum(key.get("status", {}).get("usedMicros", 0) for key in keys)

    async def read_gatewayctl(self):
        _, shown = await asyncio.to_thread(run_gatewayctl, self.world, "accounts", "list")
        accounts = {entry["name"]: entry for entry in shown["items"]}
        return accounts[self.client.account]["charged_micros"]

    async def read_report(self):
        path = "/api/v1/management/usage"
        answer = await self.client.request("GET", path, key=self.manager)
        return sum(row["cost_micros"] for row in answer.body["data"])

    async def read_console(self):
        async with Browser(self.world.env["GATEWAY_BASE_URL"]) as browser:
            await browser.sign_in(f"{self.user}@example.com", self.password)
            page = await browser.get(f"/console/{self.client.account}")
        found = re.search(r"Spent this month\s*\$?([\d,.]+)", page.text)
        return round(float(found[1].replace(",", "")) * 1_000_000) if found else page.text

    async def read_all(self):
        """The sums that each place shows."""
        names = [name for name in vars(type(self)) if name.startswith("read_")]
        names.remove("read_all")
        shown = await asyncio.gather(*(getattr(self, name)() for name in names))
        return dict(zip(names, shown, strict=True))

    async def check(self, told, micros, what):
        """Every place shows `micros`, within ten seconds where the machine is idle."""
        last = {}

        async def agree():
            last.update(await self.read_all())
            return set(last.values()) == {micros}

        with Stopwatch() as timed:
            try:
                await wait_for(agree, seconds=6 * MOST_SECONDS, what=f"{micros} everywhere {what}")
            except AssertionError as error:
                raise AssertionError(f"{error}: {last}") from None
        told.judge(f"everywhere {what} within s", timed, at_most=MOST_SECONDS)

    async def _kubectl(self, *command):
        text = await asyncio.to_thread(self.world.run.kubectl, *command, "-o", "json")
        account = self.client.account
        return [
            obj
            for obj in json.loads(text)["items"]
            if account in (obj["metadata"]["name"], obj["spec"].get("accountName"))
        ]


async def test_charges_are_shown_everywhere_while_callbacks_are_pending(world, tally):
    told = tally("F25", "operator killed and Redis emptied while 200 callbacks are pending")
    async with Receiver() as receiver:
        port = receiver.port
    secret = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    funds = {"paidMicros": 1_000_000_000}
    spec = {"funds": funds, "webhookSecretRef": secret, "requestsPerMinute": 100_000}
    limit = {"micros": 1_000_000_000, "window": "7d"}
    async with open_tenant(world, limit=limit, **spec) as client:
        places = Places(world, client)
        env = {"GATEWAY_CALLBACK_SCHEDULE": SCHEDULE}
        async with told.trial(client, count=len(STEPS) + 1):
            await client.simulate({"behaviour": "seconds", "seconds": "0.1-0.5"})
            creations = []
            for step in STEPS:
                world.restart_doomed("operator", {**env, "GATEWAY_FAILPOINTS": f"{step}:{HIT}"})
                for number in range(TASKS_A_STEP):
                    url = f"http://127.0.0.1:{port}/{step}-{number}"
                    create = client.create_surely(
                        f"{step}-{number}", duration_seconds=SECONDS, callback_url=url
                    )
                    creations.append(asyncio.create_task(create))
                await wait_for(lambda: not world.is_alive("operator"), what=step, seconds=60)
            world.run.restart("operator", env)
            tasks = await asyncio.gather(*creations)
            ended = await client.wait_terminal(tasks, seconds=90)
            assert {body["status"] for body in ended.values()} == {"completed"}
            micros = sum(round(body["usage"]["cost"] * 1_000_000) for body in ended.values())
            assert micros > 0
            await places.check(told, micros, "while the receiver is away")
            states = [task["status"]["callback"]["state"] for task in list_tasks(world).values()]
            assert states == ["Pending"] * len(tasks)

            world.run.kill("redis")
            world.run.restart("redis")
            await places.check(told, micros, "after a loss of Redis")

            # the object is lost: its client reads the archive
            lost = tasks.pop().replace("_", "-", 1)
            world.run.kubectl(
                "patch", "gatewaytask", lost, "--type=merge", "-p", '{"metadata":{"finalizers":[]}}'
            )
            world.run.kubectl("delete", "gatewaytask", lost)
            answer = await client.poll(lost.replace("-", "_", 1))
            assert answer.body == ended[lost.replace("-", "_", 1)]

            async with Receiver(port=port) as receiver:
                client.history.accepted = tasks
                await wait_for(
                    lambda: asyncio.to_thread(is_closed, world, client),
                    seconds=60,
                    what="every callback delivered",
                )
                for task in tasks:
                    check_one_event(receiver.of(task), task, ended[task])
            await places.check(told, micros, "once all callbacks are delivered")
            assert await count_requests(places) == len(STEPS) * TASKS_A_STEP
    told.check()


async def count_requests(places):
    """Return the number of tasks in the usage objects."""
    items = await places._kubectl("get", "gatewayusages")
    return sum(obj["status"]["requests"] for obj in items)
