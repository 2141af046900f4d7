"""The account of the console's pictures: its objects, its past days, and its calls of today.

Past days cannot be lived through, so their usage objects are written as the operator writes them,
by the same rules (`core/billing/usage.py`). All that is of today is made by calls of the REST API.
"""

import asyncio
import json
import random
import string
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.manifests import parse_manifests
from gateway_cli.local.config import LocalConfig
from gateway_cli.local.run import LocalRun
from gateway_cli.local.state import PEPPER, read_shared_secret
from gateway_cli.rest.access import poll_ended
from gateway_cli.rest.client import RestApi
from gateway_cli.rest.errors import RestError
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
VIDEO, FAST = "aurora-video", "aurora-video-fast"
LARGE, SMALL = "quill-large", "quill-small"
GUARDRAIL = "grd-experiments"
KEYS = {"SHOP": "key-web-shop", "NIGHTLY": "key-nightly-captions", "TRIALS": "key-trials"}
MODERATION = "sim-moderation"
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
PROMPTS = (
    "A paper boat sails across a calm lake at sunrise",
    "A ceramic cup turns slowly on an oak table, soft window light",
    "A red bicycle leans against a blue wall, leaves drift past",
    "A lighthouse at dawn, waves roll in, gulls overhead",
    "A loaf of bread rises in the oven, time lapse",
    "A hand folds a paper crane, close up",
    "A tram passes through a snowy street in the evening",
    "A hot-air balloon lifts off above a meadow in mist",
)
SHOWN_PROMPT = PROMPTS[0]
"""The prompt of the task that has a page of its own among the pictures."""
_MOST_SECONDS = 120.0
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
        self._run = run
        self.password = generate_password()
        self.keys = {name: mint_key("Standard") for name in KEYS}
        """By the names of `KEYS`."""
        self.shown_task = ""
        """Id of the completed task with `SHOWN_PROMPT`, from `call` on."""

    async def prepare(self, now: datetime) -> None:
        """Write past days and objects, and return when the API process knows the objects.

        The days come first, since the account's sums are read when it appears.
        """
        connection = find_connection(self._run.config.cluster_kubeconfig)
        async with KubernetesClient(connection, self._run.config.namespace) as kube:
            for day, status in describe_days(now):
                usage = await open_usage(kube, ACCOUNT, day)
                await kube.patch_status(GatewayUsage.plural, usage, status)
        path = Path(__file__).with_name("studio.yaml")
        text = string.Template(path.read_text()).substitute(self._list_values())
        config = self._run.config
        async with open_cluster(
            config.namespace, patience=30, kubeconfig=config.cluster_kubeconfig
        ) as cluster:
            for obj in parse_manifests(text, path.name):
                await cluster.apply(obj)
        for minted in self.keys.values():
            async with RestApi(config.base_url, minted.plaintext) as api:
                await _wait_known(api)

    def _list_values(self) -> dict[str, str]:
        pepper = read_shared_secret(self._run.config.secrets_directory, PEPPER)
        values = {"PASSWORD_HASH": hash_password(self.password)}
        for name, minted in self.keys.items():
            values |= {
                f"{name}_NAME": KEYS[name],
                f"{name}_ID": minted.id,
                f"{name}_HINT": minted.hint,
                f"{name}_DIGEST": digest(minted.plaintext, pepper),
            }
        return values

    async def call(self, hook: str) -> None:
        """Today's calls: tasks that are called back at `hook`, chats, a batch of moderations.

        Two tasks stay under way.
        """
        await set_faults(self._run.config, _FAULTS)
        async with AsyncExitStack() as stack:
            shop, nightly, trials = [
                await stack.enter_async_context(
                    RestApi(self._run.config.base_url, minted.plaintext)
                )
                for minted in self.keys.values()
            ]
            tasks = [await _create(shop, VIDEO, prompt, hook) for prompt in PROMPTS]
            tried = [await _create(trials, FAST, prompt) for prompt in (*PROMPTS[2:5], _REFUSED)]
            await asyncio.gather(
                *(_chat(shop, LARGE, text) for text in _QUESTIONS * 3),
                *(_chat(nightly, SMALL, text) for text in _QUESTIONS * 5),
                _run_batch(nightly),
                *(_wait(shop, task) for task in tasks),
                *(_wait(trials, task) for task in tried),
            )
            self.shown_task = tasks[0].rpartition("/")[2]
            for _ in range(2):
                await _create(shop, VIDEO, _SLOW, hook)


async def set_faults(config: LocalConfig, rules: Sequence[Mapping[str, Any]]) -> None:
    """Replace the rules by which the simulated provider misbehaves."""
    url = f"{config.simulator_url}/control"
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.put(url, json={"rules": rules}),
    ):
        pass


@asynccontextmanager
async def receive_callbacks(failing: float = 0) -> AsyncIterator[str]:
    """The address of a receiver of callbacks; it refuses that share of them for the time being."""
    draw = random.Random(11)  # noqa: S311 - sample data

    async def accept(_: web.Request) -> web.Response:
        return web.Response(status=503 if draw.random() < failing else 204)

    app = web.Application()
    app.router.add_post("/hooks/videos", accept)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        _, port = runner.addresses[0]
        yield f"http://127.0.0.1:{port}/hooks/videos"
    finally:
        await runner.cleanup()


def describe_days(now: datetime) -> Iterator[tuple[str, dict[str, Any]]]:
    """The days before `now` with the status of their usage objects, always the same for a day."""
    for back in range(DAYS - 1, 0, -1):
        moment = now.astimezone(UTC) - timedelta(back)
        day = moment.date().isoformat()
        status = add_charges({}, day, list_charges(moment), now)
        # names are of objects, and there are none of these charges
        yield day, {**status, "pending": []}


def list_charges(moment: datetime) -> Iterator[Charge]:
    """The charges of a day: fewer at weekends, and more from week to week."""
    day = moment.date().isoformat()
    draw = random.Random(day)  # noqa: S311 - sample data
    growth = 1.7 + (moment.toordinal() % 28) / 40
    busy = (0.35 if moment.weekday() >= 5 else 1.0) * growth * draw.uniform(0.8, 1.15)
    for key, model, operation, calls, micros, failing in _ROWS:
        for hour in range(24):
            share = busy * draw.uniform(0.5, 1.5) * (2 if 7 <= hour < 19 else 0.2) / 26.8
            requests = round(calls * share + draw.random() - 0.5)
            if requests <= 0:
                continue
            failed = sum(draw.random() < failing for _ in range(requests))
            input_tokens, output_tokens = _TOKENS.get(model, (0, 0))
            guardrails = (f"guardrail/{GUARDRAIL}",) if key == "TRIALS" else ()
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


async def _wait_known(api: RestApi) -> None:
    """Until the API process has seen the key and the models."""
    wanted = {("reference_to_video", VIDEO), ("reference_to_video", FAST)}
    wanted |= {("chat", LARGE), ("chat", SMALL)}
    async with asyncio.timeout(_MOST_SECONDS):
        while wanted:
            with suppress(RestError):
                found = {each: await api.get_price(*each) or {} for each in wanted}
                wanted = {e for e in wanted if found[e].get("catalog_status") != "available"}
            await asyncio.sleep(0.1)


async def _create(api: RestApi, model: str, prompt: str, hook: str | None = None) -> str:
    """The path of a new task."""
    body = {
        "model": model,
        "prompt": prompt,
        "reference_image_urls": ["https://northwind.example/references/17.png"],
        "duration_seconds": 5,
        **({"callback_url": hook} if hook else {}),
    }
    path = "/api/v1/aurora/reference_to_video"
    return f"{path}/{(await api.create(path, body, str(uuid.uuid4())))['id']}"


async def _wait(api: RestApi, path: str) -> None:
    await poll_ended(lambda: api.get(path), _MOST_SECONDS, (0.5, 1.0))


async def _chat(api: RestApi, model: str, text: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    await api.post("/v1/chat/completions", body)


async def _run_batch(api: RestApi) -> None:
    lines = [
        {
            "custom_id": f"caption-{number}",
            "method": "POST",
            "url": "/v1/moderations",
            "body": {"model": MODERATION, "input": text},
        }
        for number, text in enumerate(PROMPTS * 10)
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    name, fields = "captions.jsonl", {"purpose": "batch"}
    file = await api.send_file("/v1/files", "file", data, name, fields=fields)
    body = {
        "input_file_id": file["id"],
        "endpoint": "/v1/moderations",
        "completion_window": "24h",
    }
    batch = await api.create("/v1/batches", body, str(uuid.uuid4()))
    await _wait(api, f"/v1/batches/{batch['id']}")
