"""The account of the console's pictures: its objects, its past days, and its calls of today.

Past days cannot be lived through, so their usage objects are written as the operator writes them,
by the same rules (`core/billing/usage.py`). All that is of today is made by calls of the REST API.
"""

import asyncio
import random
import string
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from tools.pictures.gateway import receive_callbacks, run_gateway
from tools.pictures.load import (
    FAST,
    LARGE,
    MAX_UNDER_WAY,
    MODERATION,
    SMALL,
    VIDEO,
    Load,
)

from gateway_cli.cluster.applying import apply
from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.manifests import parse_manifests
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
MAX_SECONDS = 120.0
"""For the API process to see the new objects."""
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


@dataclass(frozen=True, slots=True)
class Studio:
    """The account in a run, and the password that its user signs in with."""

    run: LocalRun
    load: Load
    password: str


@asynccontextmanager
async def open_studio(
    extra_env: Mapping[str, Mapping[str, str]] | None = None, failing_callbacks: float = 0
) -> AsyncIterator[Studio]:
    """Start a gateway with the account, whose objects the API process has seen."""
    async with (
        run_gateway(extra_env) as run,
        receive_callbacks(failing_callbacks) as hook,
        aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=60),
            connector=aiohttp.TCPConnector(limit=MAX_UNDER_WAY),
        ) as session,
    ):
        password = generate_password()
        keys = await _write_objects(run, password)
        load = Load(run.config, keys, session, hook)
        async with asyncio.timeout(MAX_SECONDS):
            for key in KEYS:
                for model in (VIDEO, FAST, LARGE, SMALL):
                    await _wait_available(load, key, model)
        yield Studio(run, load, password)


async def _write_objects(run: LocalRun, password: str) -> dict[str, str]:
    """Write past days and objects, and return the keys by the names of `KEYS`.

    The days come first, since the account's sums are read when it appears.
    """
    config = run.config
    connection = find_connection(config.cluster_kubeconfig)
    async with KubernetesClient(connection, config.namespace) as kube:
        for day, status in describe_days(datetime.now(UTC)):
            usage = await open_usage(kube, ACCOUNT, day)
            await kube.patch_status(GatewayUsage.plural, usage, status)
    pepper = read_shared_secret(config.secrets_directory, PEPPER)
    values, keys = {"PASSWORD_HASH": hash_password(password)}, dict[str, str]()
    for name in KEYS:
        minted = mint_key("Standard")
        keys[name] = minted.plaintext
        values |= {f"{name}_NAME": KEYS[name], f"{name}_ID": minted.id}
        values |= {f"{name}_HINT": minted.hint}
        values |= {f"{name}_DIGEST": digest(minted.plaintext, pepper)}
    path = Path(__file__).with_name("studio.yaml")
    text = string.Template(path.read_text()).substitute(values)
    async with open_cluster(
        config.namespace, patience=30, kubeconfig=config.cluster_kubeconfig
    ) as cluster:
        for obj in parse_manifests(text, path.name):
            await apply(cluster, obj)
    return keys


async def _wait_available(load: Load, key: str, model: str) -> None:
    """Wait until the API process has seen the key and the model."""
    action = "reference_to_video" if model in (VIDEO, FAST) else "chat"
    path, status = f"/api/v1/price_schedules?action={action}&model={model}", ""
    while status != "available":
        entries = (await load.send("GET", path, key)).get("price_schedules")
        status = entries[0]["catalog_status"] if entries else ""
        await asyncio.sleep(0.1)


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
