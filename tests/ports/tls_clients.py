"""One of the gateway's TLS clients against a peer that resets handshakes, beside other connections.

    python -m tests.ports.tls_clients CLIENT PEER_PORT ECHO_PORT CA_FILE

Run by `test_tls_resets`, in a process of its own on the event loop that the gateway's processes
use, until its standard input ends. Prints what happened to the other connections: a JSON object of
counts by problem.
"""

import asyncio
import collections
import json
import os
import random
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

from gateway_core.api.provider import ProviderSpec
from gateway_core.api.task import GatewayTask
from gateway_core.callbacks.client import CallbackSender
from gateway_core.concurrency import Supervisor
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.files.fetching import Fetcher
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.connection import Connection
from gateway_core.llm.client import Client
from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.notices import Notice, NoticeSigner, OperatorLink
from gateway_core.providers.registry import build_moderation
from gateway_core.providers.upstream import JobInput
from gateway_core.redis.transient import TransientStore
from gateway_core.storage.s3.client import build_client
from gateway_core.storage.s3.store import S3Store

AT_ONCE = 8
INNOCENT = 16
EXCHANGES = 20
"""Exchanges of an innocent connection before it is replaced, so that descriptors are reused."""
ANSWER_SECONDS = 30.0
CALL_SECONDS = 30.0
POLICY = AddressPolicy((ip_network("127.0.0.0/8"),))

Call = Callable[[], Awaitable[object]]
Opening = Callable[[int, str], AbstractAsyncContextManager[Call]]
"""Opens a client of a peer, given its port and the file of its authority; yields one call."""

Found = collections.Counter[str]


@asynccontextmanager
async def open_kubernetes(port: int, ca: str) -> AsyncIterator[Call]:
    connection = Connection(f"https://127.0.0.1:{port}", ca_pem=Path(ca).read_text())
    async with KubernetesClient(connection, "test") as kube:
        yield lambda: kube.get(GatewayTask.plural, "task-1")


@asynccontextmanager
async def open_kopf(port: int, ca: str) -> AsyncIterator[Call]:
    """The session of kopf's requests."""
    # the other clients need not wait for these imports
    from gateway_operator.handlers import login_to

    connection = Connection(f"https://127.0.0.1:{port}", ca_pem=Path(ca).read_text())
    login = await login_to(connection, Supervisor())
    async with login.aiohttp_session as session:
        yield lambda: session.get(f"{login.server}/api")


@asynccontextmanager
async def open_provider(port: int, _ca: str) -> AsyncIterator[Call]:
    upstream = build_provider(port)
    yield lambda: upstream.submit(JobInput("reference", "m", {"prompt": "a cat"}))
    await upstream.close()


@asynccontextmanager
async def open_poll(port: int, _ca: str) -> AsyncIterator[Call]:
    upstream = build_provider(port)
    yield lambda: upstream.poll("job-1")
    await upstream.close()


@asynccontextmanager
async def open_outputs(port: int, _ca: str) -> AsyncIterator[Call]:
    # another host than the provider's own: an address that the provider alone has named
    upstream = build_provider(port, host="localhost")

    async def fetch() -> None:
        async with upstream.fetch(f"https://127.0.0.1:{port}/clip.mp4"):
            pass

    yield fetch
    await upstream.close()


def build_provider(port: int, host: str = "127.0.0.1") -> HttpUpstream:
    spec = {
        "type": "http",
        "http": {
            "baseUrl": f"https://{host}:{port}",
            "outputHosts": ["127.0.0.1"],
            "submit": {"path": "/v1/jobs", "body": "{prompt: input.prompt}", "jobId": "job.id"},
            "poll": {
                "path": "/v1/jobs/{jobId}",
                "state": "state",
                "stateWords": {"succeeded": ["done"], "failed": ["error"]},
                "outputs": "outputs",
            },
        },
    }
    return HttpUpstream(ProviderSpec.model_validate(spec), None, POLICY)


@asynccontextmanager
async def open_moderation(port: int, _ca: str) -> AsyncIterator[Call]:
    spec = {"type": "openai", "openai": {"baseUrl": f"https://127.0.0.1:{port}/v1"}}
    upstream = build_moderation(ProviderSpec.model_validate(spec), "token")
    yield lambda: upstream.moderate({"model": "m", "input": "hello"})
    await upstream.close()


@asynccontextmanager
async def open_llm(port: int, _ca: str) -> AsyncIterator[Call]:
    client = Client(f"https://127.0.0.1:{port}", AT_ONCE)
    head = client.prepare("POST", "/v1/chat/completions", {})
    yield lambda: client.send(head, b"{}")
    client.close()


@asynccontextmanager
async def open_callbacks(port: int, _ca: str) -> AsyncIterator[Call]:
    sender = CallbackSender(POLICY, timeout=CALL_SECONDS)

    async def send() -> None:
        answer = await sender.send(f"https://127.0.0.1:{port}/", {}, b"{}")
        if answer.status is None:
            raise ConnectionError(answer.text)

    yield send
    await sender.close()


@asynccontextmanager
async def open_fetch(port: int, _ca: str) -> AsyncIterator[Call]:
    fetcher = Fetcher(POLICY)

    async def fetch() -> None:
        async with fetcher.open(f"https://127.0.0.1:{port}/image.png", "demo"):
            pass

    yield fetch
    await fetcher.close()


@asynccontextmanager
async def open_s3(port: int, ca: str) -> AsyncIterator[Call]:
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CA_BUNDLE": ca,
        "AWS_MAX_ATTEMPTS": "1",
    }
    store = S3Store(build_client(f"https://127.0.0.1:{port}", "us-east-1", "path"), "bucket")
    yield lambda: store.get("files/a")
    await asyncio.to_thread(store.close)


@asynccontextmanager
async def open_notices(port: int, _ca: str) -> AsyncIterator[Call]:
    signer, notice = NoticeSigner(bytes(16)), Notice("task-1", "uid")
    async with OperatorLink(f"https://127.0.0.1:{port}", 1, signer) as link:
        yield lambda: link.deliver(notice)


@asynccontextmanager
async def open_redis(port: int, ca: str) -> AsyncIterator[Call]:
    store = TransientStore(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={ca}")
    yield lambda: store.read("a")
    await store.close()


CLIENTS: dict[str, Opening] = {
    "kubernetes": open_kubernetes,
    "kopf": open_kopf,
    "submission": open_provider,
    "poll": open_poll,
    "outputs": open_outputs,
    "moderation": open_moderation,
    "llm": open_llm,
    "callbacks": open_callbacks,
    "fetch": open_fetch,
    "s3": open_s3,
    "notices": open_notices,
    "redis": open_redis,
}


async def attack(call: Call) -> None:
    """Calls again and again until cancelled, whatever the network makes the calls raise."""
    while True:
        try:
            await call()
        except TypeError:
            # a call that no longer fits its adapter resets nothing, and would be waited for
            traceback.print_exc()
            os._exit(1)
        except Exception:  # as each call is reset
            pass


async def exchange(number: int, port: int, harmed: Found) -> None:
    """Sends bytes that no other connection sends, and expects them back, until cancelled."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for turn in range(EXCHANGES):
                sent = f"{number}-{turn}-{random.random()}".encode()
                writer.write(sent)
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await reader.readexactly(len(sent))
                if answer != sent:
                    harmed["foreign bytes"] += 1
                await asyncio.sleep(0.001)
            writer.close()
            await writer.wait_closed()
        except Exception as error:
            harmed[f"{type(error).__name__}: {error}"] += 1
            await asyncio.sleep(0.01)


async def main(name: str, peer: int, echo: int, ca: str) -> None:
    """Attacks until standard input ends, and prints what happened."""
    harmed = Found()
    async with CLIENTS[name](peer, ca) as call:
        tasks = [asyncio.create_task(exchange(n, echo, harmed)) for n in range(INNOCENT)]
        tasks += [asyncio.create_task(attack(call)) for _ in range(AT_ONCE)]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(harmed))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
