"""Framing attacks on every listener, and on clients that share a proxy's connections (F24)."""

import json
import re
import subprocess
from contextlib import suppress

import pytest

from tests.servers.framing import converse, run_go_proxy, run_nginx, send
from tests.servers.framing_cases import CASES
from tests.servers.world import wait_for

pytestmark = pytest.mark.full

PUBLIC = ("api", "media", "mcp")
INTERNAL = ("api_health", "media_health", "mcp_health", "simulator")
ANSWERED = re.compile(
    r"method=(\S+) route=(\S+) status=(\S+) .*account=(\S+) client_request_id=(\S+)"
)
UPGRADES = [case for case in CASES if case.name.startswith("upgrade") and not case.refused]
UPGRADE = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAMAAABkAAQAoAAA",
)
"""Headers that `curl --http2` and Java's HttpClient add."""


def check(case, statuses):
    served, rest = statuses[: len(case.requests)], statuses[len(case.requests) :]
    assert len(served) == len(case.requests), (case.name, statuses)
    assert not {400, 431, 501, 505} & set(served), (case.name, statuses)
    refusal = [case.refused] if case.refused else []
    # no refusal follows responses under way
    assert rest == refusal or (case.requests and not rest), (case.name, statuses)


@pytest.mark.parametrize("listener", PUBLIC)
async def test_listener_answers_exactly_the_requests_of_rfc_9112(world, tally, listener):
    told = tally("F24", f"framing attacks on the listener {listener}")
    for case in CASES:
        async with told.trial():
            check(case, await converse(getattr(world.config.ports, listener), case))
    told.check()


@pytest.mark.parametrize("listener", INTERNAL)
async def test_internal_listener_keeps_the_body_of_a_request_with_upgrade(world, listener):
    for case in UPGRADES:
        check(case, await converse(getattr(world.config.ports, listener), case))


@pytest.mark.parametrize("kind", ["nginx", "nginx that buffers", "Go"])
async def test_clients_of_a_proxy_with_one_connection_get_their_own_responses(
    world, shared, tally, kind, unused_tcp_port, tmp_path
):
    """A stranger attacks in turn with a client; each of the client's requests is executed alone."""
    told = tally("F24", f"framing attacks through {kind} with one connection for all clients")
    target = world.config.ports.api
    proxy = (
        run_go_proxy(target)
        if kind == "Go"
        else run_nginx(target, unused_tcp_port, tmp_path, buffers=kind != "nginx")
    )
    with proxy as port:
        base = f"http://127.0.0.1:{port}"

        async def is_up():
            with suppress(ConnectionError):
                return (await shared.request("GET", "/", base=base, key=None)).status < 500

        await wait_for(is_up, what="the proxy")
        begin = len(world.log("api"))
        for number, case in enumerate(CASES):
            async with told.trial(shared):
                await send(port, case.data)
                headers = {"X-Client-Request-Id": f"client-{number}"}
                answer = await shared.request("GET", "/api/v1/me", base=base, headers=headers)
                assert answer.status == 200, (case.name, answer.raw)
                assert answer.body["account"]["name"] == f"Account {shared.account}", case.name
    await wait_for(lambda: f"client-{len(CASES) - 1}\n" in world.log("api")[begin:])
    lines = [line for line in world.log("api")[begin:].splitlines() if " answered " in line]
    of_client = [line for line in lines if f"account={shared.account}" in line]
    # lines of the requests that have made the account may be late
    first = next(at for at, line in enumerate(of_client) if line.endswith("=client-0"))
    facts = [ANSWERED.search(line).groups() for line in of_client[first:]]
    expected = ("GET", "/api/v1/me", "200", shared.account)
    assert facts == [(*expected, f"client-{number}") for number in range(len(CASES))]
    deletes = [case for case in CASES if case.data.startswith(b"DELETE ")]
    assert sum("method=DELETE" in line for line in lines) == len(deletes)
    told.check()


@pytest.mark.parametrize(
    "coding", [[], ["-HTransfer-Encoding: chunked"]], ids=["length", "chunked"]
)
def test_curl_that_offers_http_2_keeps_its_bodies_and_its_connections(
    world, shared_account, tmp_path, coding
):
    sent, answer = tmp_path / "sent", tmp_path / "answer"
    sent.write_bytes(b"0123456789abcdef" * 10_000)
    long = "x" * 100_000
    chat = {"model": "sim-chat", "messages": [{"role": "user", "content": long}]}
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"x/y": long}}}
    api, mcp = world.env["GATEWAY_BASE_URL"], f"http://127.0.0.1:{world.config.ports.mcp}/mcp"
    key = f"Authorization: Bearer {shared_account[1]}"
    options = ["-s", "-w", "%{http_code} %{num_connects}\n", *(f"-H{f}" for f in (*UPGRADE, key))]
    document = ["-o", "/dev/null", "-HContent-Type: application/json", "-d"]
    streams = "-HAccept: application/json, text/event-stream"
    calls = [
        ["-o", answer, "-F", "purpose=user_data", "-F", f"file=@{sent}", f"{api}/v1/files"],
        [*document, json.dumps(chat), f"{api}/v1/chat/completions"],
        [streams, *document, json.dumps(ping), mcp],
        [streams, *document, json.dumps(ping), mcp],
    ]
    command = ["curl", "--max-time", "20"]
    for call in calls:
        command += [*options, *coding, *call, "--next"]
    done = subprocess.run(command[:-1], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["200 1", "200 0"] * 2
    assert json.loads(answer.read_text())["bytes"] == sent.stat().st_size
