"""The account of the console's pictures: its objects, its past days, and its calls of today.

Past days cannot be lived through, so their usage objects are written as the operator writes them,
by the same rules (`core/billing/usage.py`). All that is of today is made by calls of the REST API.
"""

import asyncio
import random
import string
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from tools.pictures.calls import (
    FAST,
    LARGE,
    MAX_SECONDS,
    MODERATION,
    PROMPTS,
    SMALL,
    TASKS,
    VIDEO,
    Client,
    describe_task,
)

from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.manifests import parse_manifests
from gateway_cli.local.config import LOOPBACK
from gateway_cli.local.run import LocalRun
from gateway_cli.local.state import PEPPER, read_shared_secret
from gateway_core.accounts.passwords import generate_password, hash_password
from gateway_core.api.key import digest, mint_key
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.charges import Charge
from gateway_core.billing.usage import add_charges
from gateway_core.billing.usage_store import open_usage
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.kubeconfig import find_connection

ACCOUNT, USER_EMAIL = "northwind", "nora@northwind.example"
DAYS = 30
GUARDRAIL = "grd-experiments"
KEYS = {"SHOP": "key-web-shop", "NIGHTLY": "key-nightly-captions", "TRIALS": "key-trials"}
_ROWS: tuple[tuple[str, str, str, int, int, float], ...] = (
    # key, model, operation, calls on a working day, micro-dollars of each, share that fails
    ("SHOP", VIDEO, "aurora/reference_to_video", 26, 300_000, 0.02),
    ("SHOP", LARGE, "quill/chat", 240, 9_500, 0.004),
    ("NIGHTLY", SMALL, "quill/chat", 520, 900, 0.01),
    ("NIGHTLY", MODERATION, "sim/moderations", 400, 100, 0.0),
    ("TRIALS", FAST, "aurora/reference_to_video", 18, 125_000, 0.08),
    ("TRIALS", LARGE, "quill/chat", 60, 12_000, 0.02),
)
_TOKENS = {LARGE: (900, 450), SMALL: (700, 220)}
_REFUSED = "A brand's logo on a rival's packaging"
_SLOW = "A slow pan over a mountain range at golden hour"
_FAULTS = (
    {
        "behaviour": "fail",
        "code": "content_policy",
        "message": "The prompt was refused by the content policy.",
        "match": {"prompt_contains": _REFUSED},
    },
    {"behaviour": "seconds", "seconds": 600, "match": {"prompt_contains": _SLOW}},
)
_QUESTIONS = (
    "Write a product text of two sentences for a hand-made oak table.",
    "Suggest three names for a video series about bread.",
    "Summarise this review: the delivery was late, the cup is lovely.",
    "Translate into Swedish: free delivery on orders over 50 euros.",
)


class Studio:
    """The account in a run, and what signs in to it."""

    def __init__(self, run: LocalRun) -> None:
        self._config = run.config
        self.password = generate_password()
        self.keys = {name: mint_key("Standard") for name in KEYS}
        """By the names of `KEYS`."""
        self.shown_task = ""
        """Id of the completed task that has a page among the pictures, from `call` on."""

    async def prepare(self, now: datetime) -> None:
        """Write past days and objects, and return when the API process knows the objects.

        The days come first, since the account's sums are read when it appears.
        """
        config = self._config
        connection = find_connection(config.cluster_kubeconfig)
        async with KubernetesClient(connection, config.namespace) as kube:
            for day, status in describe_days(now):
                usage = await open_usage(kube, ACCOUNT, day)
                await kube.patch_status(GatewayUsage.plural, usage, status)
        pepper = read_shared_secret(config.secrets_directory, PEPPER)
        values = {"PASSWORD_HASH": hash_password(self.password)}
        for name, minted in self.keys.items():
            values |= {f"{name}_NAME": KEYS[name], f"{name}_ID": minted.id}
            values |= {f"{name}_HINT": minted.hint}
            values |= {f"{name}_DIGEST": digest(minted.plaintext, pepper)}
        path = Path(__file__).with_name("studio.yaml")
        text = string.Template(path.read_text()).substitute(values)
        async with open_cluster(
            config.namespace, patience=30, kubeconfig=config.cluster_kubeconfig
        ) as cluster:
            for obj in parse_manifests(text, path.name):
                await cluster.apply(obj)
        async with self.open_client() as client, asyncio.timeout(MAX_SECONDS):
            for key in KEYS:
                for model in (VIDEO, FAST, LARGE, SMALL):
                    await _wait_available(client, key, model)

    @asynccontextmanager
    async def open_client(self, connections: int = 20) -> AsyncIterator[Client]:
        """Open a client with the account's keys."""
        keys = {name: minted.plaintext for name, minted in self.keys.items()}
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=60),
            connector=aiohttp.TCPConnector(limit=connections),
        ) as session:
            yield Client(self._config, keys, session)

    async def call(self, hook: str) -> None:
        """Make today's calls: tasks that are called back at `hook`, chats, a batch of moderations.

        Two tasks stay under way.
        """
        async with self.open_client() as client:
            await client.set_faults(_FAULTS)
            tasks = [
                await client.create_task("SHOP", describe_task(VIDEO, prompt), hook)
                for prompt in PROMPTS
            ]
            trials = [
                await client.create_task("TRIALS", describe_task(FAST, prompt))
                for prompt in (*PROMPTS[2:5], _REFUSED)
            ]
            await asyncio.gather(
                *(client.ask(text, LARGE, "SHOP") for text in _QUESTIONS * 3),
                *(client.ask(text, SMALL, "NIGHTLY") for text in _QUESTIONS * 5),
                client.wait(await client.run_batch("NIGHTLY", PROMPTS * 10), "NIGHTLY"),
                *(client.wait(f"{TASKS}/{task}", "SHOP") for task in tasks),
                *(client.wait(f"{TASKS}/{task}", "TRIALS") for task in trials),
            )
            self.shown_task = tasks[0]
            for _ in range(2):
                await client.create_task("SHOP", describe_task(VIDEO, _SLOW), hook)


async def _wait_available(client: Client, key: str, model: str) -> None:
    """Wait until the API process has seen the key and the model."""
    action = "reference_to_video" if model in (VIDEO, FAST) else "chat"
    path, status = f"/api/v1/price_schedules?action={action}&model={model}", ""
    while status != "available":
        entries = (await client.send("GET", path, key)).get("price_schedules")
        status = entries[0]["catalog_status"] if entries else ""
        await asyncio.sleep(0.1)


@asynccontextmanager
async def receive_callbacks(
    failing: float = 0, delivered: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """Open a receiver of callbacks at the address; it refuses that share of them at first.

    `delivered` is set by each callback.
    """
    draw = random.Random(11)  # noqa: S311 - sample data

    async def accept(_: web.Request) -> web.Response:
        if delivered:
            delivered.set()
        return web.Response(status=503 if draw.random() < failing else 204)

    app = web.Application()
    app.router.add_post("/hooks/videos", accept)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}/hooks/videos"
    finally:
        await runner.cleanup()


def describe_days(now: datetime) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the days before `now` with the status of their usage, always the same for a day."""
    for back in range(DAYS - 1, 0, -1):
        moment = now.astimezone(UTC) - timedelta(back)
        day = moment.date().isoformat()
        status = add_charges({}, day, list_charges(moment), now)
        # names are of objects, and there are none of these charges
        yield day, {**status, "pending": []}


def list_charges(moment: datetime) -> Iterator[Charge]:
    """Return the charges of a day: fewer at weekends, and more from week to week."""
    day = moment.date().isoformat()
    draw = random.Random(day)  # noqa: S311 - sample data
    growth = 1.7 + (moment.toordinal() % 28) / 40
    busy = (0.35 if moment.weekday() >= 5 else 1.0) * growth * draw.uniform(0.8, 1.15)
    for key, model, operation, calls, micros, failing in _ROWS:
        input_tokens, output_tokens = _TOKENS.get(model, (0, 0))
        guardrails = (f"guardrail/{GUARDRAIL}",) if key == "TRIALS" else ()
        for hour in range(24):
            share = busy * draw.uniform(0.5, 1.5) * (2 if 7 <= hour < 19 else 0.2) / 26.8
            requests = max(0, round(calls * share + draw.random() - 0.5))
            failed = sum(draw.random() < failing for _ in range(requests))
            yield Charge(
                name=f"{day}-{hour}",
                uid=f"{day}-{hour}-{key}-{model}",
                account=ACCOUNT,
                day=day,
                minute=hour * 60 + draw.randrange(60),
                key_name=KEYS[key],
                model_id=model,
                operation=operation,
                requests=requests,
                failed=failed,
                input_tokens=requests * input_tokens,
                output_tokens=requests * output_tokens,
                micros=(requests - failed) * micros,
                subjects=(f"key/{KEYS[key]}", *guardrails),
            )
