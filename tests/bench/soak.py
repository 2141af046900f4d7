"""Memory over 100,000 requests on each surface (I10): flat, whatever they were answered.

`BENCH_SOAK_SHARE` is the percentage of them to send, 3 by default. Finished tasks are removed at
once meanwhile, so that live objects, of which memory is a linear function, stay few.
"""

import asyncio
import json
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from gateway_cli.local.config import MODERATION_MODEL
from tests.bench.harness import build_call, load_api, read_mb
from tests.bench.report import Report
from tests.bench.retention import REMOVE
from tests.servers.tenants import Key, describe_account, describe_key, unique
from tests.servers.world import Client, World, wait_for

REQUESTS = 100_000
SHARE = float(os.environ.get("BENCH_SOAK_SHARE", "3"))
COUNT = int(REQUESTS * SHARE / 100)
WARM_UP = 0.2
"""The part of them after which memory is read first: pools and caches are full then."""
AT_ONCE = 8
TENANTS = 20
"""Accounts that share the calls which have a rate of their own."""
GROWTH_MIB = 4.0
PLENTY = 1_000_000
MANAGEMENT = "/api/v1/management"

Load = Callable[[int], Awaitable[Counter[int]]]
"""Sends about so many requests; the answers by status."""


async def measure_soak(world: World, key: str, report: Report) -> None:
    """Each surface in turn, on one API process and one operator."""
    world.run.restart("operator", REMOVE)
    tenants = await _make_tenants(world)
    async with world.client(key) as client:
        await client.simulate(
            {"behaviour": "stall", "match": {"prompt_contains": "stalls"}},
            {"behaviour": "seconds", "seconds": "0.2"},
        )
        surfaces = await _describe_surfaces(client, tenants)
        pids = {name: world.run.pid_of(name) for name in ("api", "operator")}
        begin = _read_memory(pids)
        for name, send in surfaces.items():
            warm = int(COUNT * WARM_UP)
            answers = await send(warm)
            before = _read_memory(pids)
            answers += await send(COUNT - warm)
            await _settle(world)
            after = _read_memory(pids)
            report.add(f"soak, {name}: requests", answers.total(), "requests")
            taken = sum(count for status, count in answers.items() if status < 500)
            report.add(f"soak, {name}: below 500", taken / answers.total(), "ratio", at_least=0.999)
            print(f"  answers: {dict(answers)}")
            for process in pids:
                growth = after[process] - before[process]
                bar = {"at_most": GROWTH_MIB} if process == "api" else {}
                report.add(f"soak, {name}: {process} memory grows by", growth, "MiB", **bar)
    end = _read_memory(pids)
    for process in pids:
        report.add(f"soak: {process} memory at the start", begin[process], "MiB")
        report.add(f"soak: {process} memory at the end", end[process], "MiB")


def _read_memory(pids: dict[str, int]) -> dict[str, float]:
    return {name: read_mb(pid) for name, pid in pids.items()}


async def _settle(world: World) -> None:
    """Waits until the operator has removed what ended, but for the one that never does."""

    def is_quiet() -> bool:
        return world.run.kubectl("get", "gatewaytasks", "-o", "name").count("\n") <= 1

    await wait_for(is_quiet, what="the removal of ended tasks", seconds=120)


async def _make_tenants(world: World) -> list[tuple[Key, Key]]:
    """A standard and a management key of each of some accounts, known at the API."""
    tenants, objects = [], []
    for _ in range(TENANTS):
        account = unique("soak")
        standard, standard_object = describe_key(world, account)
        manager, manager_object = describe_key(world, account, "Management")
        rate = {"requestsPerMinute": PLENTY}
        objects += [describe_account(account, **rate), standard_object, manager_object]
        tenants.append((standard, manager))
    world.apply(*objects)
    async with world.client(tenants[-1][0].plaintext) as client:

        async def is_known() -> bool:
            return (await client.request("GET", "/api/v1/me")).status == 200

        await wait_for(is_known, what="the accounts")
    return tenants


async def _describe_surfaces(client: Client, tenants: Sequence[tuple[Key, Key]]) -> dict[str, Load]:
    replayed = await client.create_surely("soak-replay", prompt="stalls")
    standard = [key.plaintext for key, _ in tenants]
    managers = [key.plaintext for _, key in tenants]
    run = secrets.token_hex(4)

    def get(*paths: str, keys: Sequence[str] = (client.key,)) -> Load:
        return _repeat(
            client,
            lambda n: build_call(keys[n % len(keys)], "GET", paths[n % len(paths)]),
        )

    def post(path: str, describe: Callable[[int], tuple[object, dict[str, str]]]) -> Load:
        def build(number: int) -> bytes:
            body, headers = describe(number)
            return build_call(client.key, "POST", path, body, headers)

        return _repeat(client, build)

    def create(number: int) -> tuple[object, dict[str, str]]:
        """One in a hundred is a new task; of the others each second one is refused."""
        if number % 100 == 0:
            return client.body(duration_seconds=3), {"Idempotency-Key": f"{run}-{number}"}
        if number % 2:
            return client.body(prompt="stalls"), {"Idempotency-Key": "soak-replay"}
        return client.body(prompt=None), {}

    quote = {"service": client.service, "action": "reference_to_video", "model": client.model}
    moderation = {"model": MODERATION_MODEL, "input": "a quiet lighthouse"}
    return {
        "polls": get(f"{client.tasks_path}/{replayed}", f"{client.tasks_path}/task_none"),
        "creates": post(client.tasks_path, create),
        "me and balance": get("/api/v1/me", "/api/v1/me/balance"),
        "prices and models": post("/api/v1/price_quotes", lambda _: (quote, {})),
        "moderations": post("/v1/moderations", lambda _: (moderation, {})),
        "batches": get("/v1/batches", "/v1/batches?limit=1", "/v1/batches/batch_none"),
        "management": get(f"{MANAGEMENT}/keys", f"{MANAGEMENT}/guardrails", keys=managers),
        "files": _run_cycles(client, standard, _use_file),
        "uploads": _run_cycles(client, standard, _use_upload),
    }


def _repeat(client: Client, build: Callable[[int], bytes]) -> Load:
    """Prepared requests over kept connections."""
    sent = 0

    async def send(count: int) -> Counter[int]:
        nonlocal sent
        first, sent = sent, sent + count
        load = await load_api(
            client.world, lambda n: build(first + n), count=count, concurrency=AT_ONCE
        )
        return Counter(load.statuses)

    return send


Ask = Callable[..., Awaitable[dict[str, Any]]]
"""Method, path and aiohttp's options; the object in the answer, empty where it was refused."""


def _run_cycles(client: Client, keys: Sequence[str], use: Callable[[Ask], Awaitable[None]]) -> Load:
    """Whole cycles of calls that need each other's ids, until as many were sent."""

    async def send(count: int) -> Counter[int]:
        answers: Counter[int] = Counter()
        base = client.world.env["GATEWAY_BASE_URL"]

        async def work(number: int) -> None:
            headers = {"Authorization": f"Bearer {keys[number % len(keys)]}"}
            async with aiohttp.ClientSession(base, headers=headers) as session:

                async def ask(method: str, path: str, **options: Any) -> dict[str, Any]:
                    async with session.request(method, path, **options) as answer:
                        raw = await answer.read()
                        answers[answer.status] += 1
                    is_object = answer.status == 200 and answer.content_type == "application/json"
                    return json.loads(raw) if is_object else {}

                while answers.total() < count:
                    await use(ask)

        await asyncio.gather(*(work(number) for number in range(max(AT_ONCE, len(keys)))))
        return answers

    return send


async def _use_file(ask: Ask) -> None:
    """Create, look, read, delete."""
    form = aiohttp.FormData({"purpose": "user_data"})
    form.add_field("file", secrets.token_bytes(2000), filename="a.bin")
    file = await ask("POST", "/v1/files", data=form)
    if name := file.get("id"):
        await ask("GET", f"/v1/files/{name}")
        await ask("GET", f"/v1/files/{name}/content")
        await ask("DELETE", f"/v1/files/{name}")


async def _use_upload(ask: Ask) -> None:
    """Create, one part, complete, delete the File; each second one is cancelled instead."""
    data = secrets.token_bytes(2000)
    wanted = {"bytes": len(data), "filename": "a", "mime_type": "x", "purpose": "user_data"}
    upload = (await ask("POST", "/v1/uploads", json=wanted)).get("id")
    if upload is None:
        return
    form = aiohttp.FormData()
    form.add_field("data", data, filename="part")
    part = await ask("POST", f"/v1/uploads/{upload}/parts", data=form)
    if data[0] % 2:
        await ask("POST", f"/v1/uploads/{upload}/cancel")
        return
    listed = {"part_ids": [part.get("id", "")]}
    completed = await ask("POST", f"/v1/uploads/{upload}/complete", json=listed)
    if file := completed.get("file"):
        await ask("DELETE", f"/v1/files/{file['id']}")
