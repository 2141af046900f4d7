"""`helm test`: proves an installation through its Services.

Readiness, the key, a free call, and a File written to the store and read again; with a model also
one task from POST to its video, its callback received here. Runs in a pod of the cluster with the
key that the installation made for it.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
from aiohttp import web

from gateway_cli.admin.documents import dollars
from gateway_cli.rest.client import RestApi
from gateway_cli.rest.errors import RestError
from gateway_cli.rest.sample import SampleFailed, blame, create_sample, fetch_video, wait_completed
from gateway_core.api.money import MICROS_PER_CENT
from gateway_core.callbacks.signing import read_secret, sign

TASK_SECONDS = 120.0
CALLBACK_SECONDS = 200.0
"""Four attempts of the default schedule: names may not resolve while a cluster is busy."""
FILE_BYTES = 65_536
READY_SECONDS = 60.0
PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The model of the test's task, and this pod's address for its callback."""

    service: str
    model: str
    callback_host: str | None = None
    callback_secret: str | None = None


async def check_readiness(
    api: RestApi, report: Callable[[str], None], *, seconds: float = READY_SECONDS
) -> None:
    """Wait for a ready API, and check that a call without a key is refused. SampleFailed."""
    with blame("api"):
        status = await _wait_ready(api, seconds)
        if status != 200:
            raise SampleFailed(f"/readyz answers {status}: the API is not ready", "api")
        report("the API is ready")
        refused = await api.probe("/v1/models")
        if refused != 401:
            raise SampleFailed(f"a call without a key gets {refused} instead of 401", "api")
        report("a call without a key is refused")


async def _wait_ready(api: RestApi, seconds: float) -> int:
    """Return the last status of `/readyz`. Names may not resolve at once after an installation."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(RestError):
            if await api.probe("/readyz") == 200:
                return 200
        await asyncio.sleep(PAUSE_SECONDS)
    return await api.probe("/readyz")


async def check_calls(api: RestApi, report: Callable[[str], None]) -> None:
    """Check the key, a free call and the store; leave and cost nothing. SampleFailed."""
    with blame("api"):
        balance = await api.get("/api/v1/me/balance", member="balance_cents")
        amount = dollars(balance["balance_cents"] * MICROS_PER_CENT)
        report(f"the key opens an account with a balance of {amount} USD")
        models = await api.get("/v1/models", member="data")
        report(f"models listed: {len(models['data'])}")
        await _check_store(api, report)


async def _check_store(api: RestApi, report: Callable[[str], None]) -> None:
    sent = os.urandom(FILE_BYTES)
    fields = {"purpose": "user_data"}
    file = await api.send_file("/v1/files", "file", sent, "installation-test.bin", fields=fields)
    path = f"/v1/files/{file['id']}"
    try:
        read = await api.read(f"{path}/content")
    finally:
        await api.delete(path)
    if read != sent:
        text = f"the store returned {len(read)} bytes that are not the {FILE_BYTES} written"
        raise SampleFailed(text, "api")
    report(f"{FILE_BYTES} bytes were written to the store, read again and deleted")


async def run_trial(trial: Trial, api: RestApi, report: Callable[[str], None]) -> None:
    """Run one task to its end, and tell `report` of each step.

    Raises:
        SampleFailed: something is not as it should be.
    """
    async with _listen(trial.callback_host) as (callback_url, received):
        begin = time.monotonic()
        path = await create_sample(api, trial.service, trial.model, callback_url)
        task_id = path.rpartition("/")[2]
        report(f"202: {task_id} is recorded")
        task = await wait_completed(api, path, TASK_SECONDS)
        took = time.monotonic() - begin
        report(f"completed after {took:.1f} s, cost {task['usage']['cost']} USD")
        with tempfile.TemporaryDirectory() as folder:
            url, size = await fetch_video(api, task, Path(folder, "video.mp4"))
        report(f"video of {size} bytes from {url}")
        if callback_url:
            await _check_callback(received, task_id, trial.callback_secret)
            report("the callback arrived")


@asynccontextmanager
async def _listen(
    host: str | None,
) -> AsyncIterator[tuple[str | None, asyncio.Queue[tuple[web.Request, bytes]]]]:
    """Open a receiver of callbacks on a free port; without a host there is none."""
    received: asyncio.Queue[tuple[web.Request, bytes]] = asyncio.Queue()
    if not host:
        yield None, received
        return

    async def take(request: web.Request) -> web.Response:
        received.put_nowait((request, await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/callback", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        # of one family: without an address each would have a free port of its own
        site = web.TCPSite(runner, "::" if ":" in host else "0.0.0.0", 0)  # noqa: S104 - a pod
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}/callback", received
    finally:
        await runner.cleanup()


async def _check_callback(
    received: asyncio.Queue[tuple[web.Request, bytes]], task_id: str, secret: str | None
) -> None:
    """Wait for the callback; its body must be the task's and its signature the account's."""
    try:
        async with asyncio.timeout(CALLBACK_SECONDS):
            request, body = await received.get()
    except TimeoutError:
        text = f"no callback within {CALLBACK_SECONDS:.0f} s"
        raise SampleFailed(text, "operator") from None
    answer = orjson.loads(body)
    if answer.get("id") != task_id or answer.get("status") != "completed":
        raise SampleFailed(f"the callback is of something else: {answer}", "operator")
    if secret is None:
        return
    time_sent = int(request.headers["webhook-timestamp"])
    expected = sign([read_secret(secret)], request.headers["webhook-id"], time_sent, body)
    if expected not in request.headers["webhook-signature"].split(" "):
        raise SampleFailed("the callback's signature is not the account's", "operator")
