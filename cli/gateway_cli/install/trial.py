"""`helm test`: one task from POST to its video through the Services, its callback received here.

Runs in a pod of the cluster with the key that the installation made for it.
"""

import asyncio
import hmac
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
from aiohttp import web

from gateway_cli.rest.client import RestApi
from gateway_cli.rest.sample import SampleFailed, create_sample, fetch_video, wait_completed

TASK_SECONDS = 120.0
CALLBACK_SECONDS = 200.0
"""Four attempts of the default schedule: names may not resolve while a cluster is busy."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The API, model and key of the test, and this pod's address for callbacks."""

    base_url: str
    service: str
    model: str
    api_key: str
    callback_host: str | None = None
    callback_secret: str | None = None


async def run_trial(trial: Trial, report: Callable[[str], None]) -> None:
    """One task to its end; tells `report` of each step.

    Raises:
        SampleFailed: something is not as it should be.
    """
    async with (
        _listen(trial.callback_host) as (callback_url, received),
        RestApi(trial.base_url, trial.api_key, report) as api,
    ):
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
    """A receiver of callbacks on a free port, and its URL; none without a host to be reached at."""
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
    """Waits for the callback; its body must be the task's and its signature the account's."""
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
    head = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}."
    key = b64decode(secret.removeprefix("whsec_"))
    expected = "v1," + b64encode(hmac.digest(key, head.encode() + body, "sha256")).decode()
    if expected not in request.headers["webhook-signature"].split(" "):
        raise SampleFailed("the callback's signature is not the account's", "operator")
