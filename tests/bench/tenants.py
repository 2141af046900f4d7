"""10,000 keys and 1,000 accounts against 10 keys: starts, memory, looking one up, one change.

Half of the keys were made by a user of their account. All are in the record as an admin's would be,
so that both processes follow them and the operator judges each.
"""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gateway_core.accounts.authentication import Authenticator
from gateway_core.accounts.records import project_account, project_key, project_user
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.key import GatewayKey
from gateway_core.api.resource import Object, Resource, skeleton
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.informer import Informer
from gateway_core.kube.read_through import ReadThrough
from gateway_core.kube.secrets import load_key
from tests.bench.harness import build_call, do_all, load_api, restart, watch_usage
from tests.bench.report import Report
from tests.servers.tenants import describe_token
from tests.servers.world import World, wait_for

FEW, MANY = 10, int(os.environ.get("BENCH_TENANTS", "10000"))
KEYS_AN_ACCOUNT = 10
AT_ONCE = 16
LOOKS, GETS, ROUNDS = 10_000, 2000, 5
CHANGES = 40
IDLE_SECONDS = 10
LABEL = "modelgateway.dev/bench"
KINDS: tuple[type[Resource], ...] = (GatewayKey, GatewayUser, GatewayAccount)


class _Tenants:
    """Accounts of ten keys each, and one user who made half of them."""

    def __init__(self, world: World) -> None:
        self.plaintexts: list[str] = []
        self._world = world

    def describe_more(self, keys: int) -> list[tuple[str, Object]]:
        """Further objects, until there are so many keys."""
        made: list[tuple[str, Object]] = []
        while len(self.plaintexts) < keys:
            number = len(self.plaintexts) // KEYS_AN_ACCOUNT
            account, user = f"tenant-{number}", f"person-{number}"
            owner = {"name": "Bench", "email": "bench@example.com"}
            made.append(_describe(GatewayAccount, account, displayName=account, owner=owner))
            membership = {"accountName": account, "role": "member"}
            email = f"{user}@example.com"
            person = {"displayName": user, "email": email, "memberships": [membership]}
            made.append(_describe(GatewayUser, user, **person))
            for place in range(KEYS_AN_ACCOUNT):
                creator = {"createdBy": user} if place % 2 else {}
                made.append(self._describe_key(account, creator))
        return made

    def _describe_key(self, account: str, creator: dict[str, str]) -> tuple[str, Object]:
        plaintext, token = describe_token(self._world)
        name = f"key-tenant-{len(self.plaintexts)}"
        self.plaintexts.append(plaintext)
        spec = {"accountName": account, "displayName": name, "tokens": [token], **creator}
        return _describe(GatewayKey, name, **spec)


async def measure_tenants(world: World, key: str, report: Report) -> None:
    """The same figures with few and with many, and their ratios."""
    tenants = _Tenants(world)
    async with world.kube() as kube:
        try:
            await do_all((kube.create(*made) for made in tenants.describe_more(FEW)), AT_ONCE)
            few = await _measure(world, kube)
            operator = world.run.pid_of("operator")
            more = tenants.describe_more(MANY)
            begin = time.monotonic()
            async with watch_usage({"operator": operator}) as usage:
                await do_all((kube.create(*made) for made in more), AT_ONCE)
                created = time.monotonic() - begin
                await _wait_judged(world, len(tenants.plaintexts))
            report.add("tenants: objects made", len(more) / created, "objects/s")
            cost = usage["operator"].cpu / len(more) * 1000
            report.add("tenants: operator CPU for each that is new", cost, "ms", at_most=8.0)
            _tell(report, few, await _measure(world, kube))
            await _measure_looks(world, kube, tenants.plaintexts, report)
            await _measure_gets(world, tenants.plaintexts, report)
        finally:
            await _remove(world, kube)


def _tell(report: Report, few: dict[str, float], many: dict[str, float]) -> None:
    for name, unit in (
        ("API ready after", "s"),
        ("API CPU at its start", "s"),
        ("API memory", "MB"),
        ("operator ready after", "s"),
        ("operator CPU in its first 15 s", "s"),
        ("operator memory", "MB"),
        ("operator CPU a change of an account", "ms"),
    ):
        report.add(f"tenants: {name}, {FEW} keys", few[name], unit)
        report.add(f"tenants: {name}, {MANY} keys", many[name], unit)
    change = "operator CPU a change of an account"
    ratio = many[change] / few[change]
    report.add(f"tenants: {change}, {MANY} over {FEW}", ratio, "ratio", at_most=2.0)
    for name, unit, bar in (
        ("API CPU at its start", "s", 0.5),
        ("operator CPU in its first 15 s", "s", 1.5),
        ("API memory", "MB", 6.0),
        ("operator memory", "MB", 15.0),
    ):
        slope = (many[name] - few[name]) / (MANY - FEW) * 1000
        report.add(f"tenants: {name}, by 1,000 keys", slope, unit, at_most=bar)


async def _measure(world: World, kube: KubernetesClient) -> dict[str, float]:
    api = await restart(world, "api", 3, {})
    operator = await restart(world, "operator", 15, {})
    return {
        "API ready after": api.seconds,
        "API CPU at its start": api.cpu,
        "API memory": api.mb,
        "operator ready after": operator.seconds,
        "operator CPU in its first 15 s": operator.cpu,
        "operator memory": operator.mb,
        "operator CPU a change of an account": await _measure_changes(world, kube),
    }


async def _measure_looks(
    world: World, kube: KubernetesClient, plaintexts: list[str], report: Report
) -> None:
    """CPU to authenticate on a table of ten keys and on one of all, in turn, every key in turn."""
    account = "spec.accountName=tenant-0"
    peppers = {1: load_key(world.config.secrets_directory, "pepper-1")}
    accounts = Informer(kube, GatewayAccount.plural, project_account)
    users = Informer(kube, GatewayUser.plural, project_user)
    few_keys = Informer(kube, GatewayKey.plural, project_key, field_selector=account)
    all_keys = Informer(kube, GatewayKey.plural, project_key)
    tables: tuple[Informer[Any], ...] = (accounts, users, few_keys, all_keys)
    running = [asyncio.create_task(table.run()) for table in tables]
    try:
        for table in tables:
            await table.wait_synced()
        cases = {
            len(texts): (
                Authenticator(
                    ReadThrough(keys, kube, GatewayKey.plural),
                    ReadThrough(accounts, kube, GatewayAccount.plural),
                    ReadThrough(users, kube, GatewayUser.plural),
                    peppers,
                ),
                [[(b"authorization", f"Bearer {text}".encode())] for text in texts],
            )
            for keys, texts in ((few_keys, plaintexts[:FEW]), (all_keys, plaintexts))
        }

        async def measure(size: int) -> float:
            authenticator, sent = cases[size]
            begin = time.process_time()
            for number in range(LOOKS):
                await authenticator.authenticate(sent[number % size])
            cost = (time.process_time() - begin) / LOOKS
            await asyncio.sleep(0.1)  # the watches are to stay alive
            return cost

        await _compare(report, "CPU to authenticate", measure)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _measure_gets(world: World, plaintexts: list[str], report: Report) -> None:
    """The API's CPU for a GET of `/api/v1/me` with ten of the keys and with all, in turn."""
    requests = [build_call(text, "GET", "/api/v1/me") for text in plaintexts]

    async def measure(size: int) -> float:
        async with watch_usage({"api": world.run.pid_of("api")}) as usage:
            await load_api(
                world, lambda n: requests[n % size], count=GETS, concurrency=8, status=200
            )
        return usage["api"].cpu / GETS

    await _compare(report, "API CPU a GET", measure)


async def _compare(report: Report, name: str, measure: Callable[[int], Awaitable[float]]) -> None:
    """Seconds with few and with all keys in turn, and the median of the rounds' ratios."""
    rounds = [(await measure(FEW), await measure(MANY)) for _ in range(ROUNDS)]
    for place, size in enumerate((FEW, MANY)):
        cost = statistics.median(costs[place] for costs in rounds)
        report.add(f"tenants: {name}, {size} keys", cost * 1e6, "us")
    ratio = statistics.median(many / few for few, many in rounds)
    report.add(f"tenants: {name}, {MANY} over {FEW}", ratio, "ratio", at_most=1.2)


async def _measure_changes(world: World, kube: KubernetesClient) -> float:
    """Milliseconds of the operator's CPU for a change of an account, its keys judged anew.

    What the operator uses when nothing changes is taken off.
    """
    pids = {"operator": world.run.pid_of("operator")}
    async with watch_usage(pids) as idle:
        await asyncio.sleep(IDLE_SECONDS)
    async with watch_usage(pids) as usage:
        begin = time.monotonic()
        for number in range(CHANGES):
            account = await kube.get(GatewayAccount.plural, "tenant-0")
            await kube.patch(
                GatewayAccount.plural, account, {"spec": {"suspended": number % 2 == 0}}
            )
            await asyncio.sleep(0.25)
        await asyncio.sleep(1)
        seconds = time.monotonic() - begin
    rest = idle["operator"].cpu / IDLE_SECONDS * seconds
    return max(0.0, usage["operator"].cpu - rest) / CHANGES * 1000


async def _wait_judged(world: World, keys: int) -> None:
    """Waits until the last key has a condition; the operator takes them in order."""

    def is_judged() -> bool:
        text = world.run.kubectl("get", "gatewaykeys", "--selector", LABEL, "-o", "json")
        items = json.loads(text)["items"]
        return len(items) == keys and all((item.get("status") or {}) for item in items)

    async def ask() -> bool:
        await asyncio.sleep(2)
        return await asyncio.to_thread(is_judged)

    await wait_for(ask, seconds=600, what="a condition on every key")


async def _remove(world: World, kube: KubernetesClient) -> None:
    """Deletes all of it: stages that follow are not to carry it."""
    for kind in KINDS:
        text = world.run.kubectl("get", kind.plural, "--selector", LABEL, "-o", "name")
        names = [line.partition("/")[2] for line in text.split()]
        await do_all((kube.delete(kind.plural, name) for name in names), AT_ONCE)


def _describe(kind: type[Resource], name: str, **spec: object) -> tuple[str, Object]:
    return kind.plural, skeleton(kind, name, labels={LABEL: "tenants"}) | {"spec": spec}
