"""The MCP conformance suite, unmodified, against the real processes.

`conformance.yaml` lists the checks that fail, each with a reason. The suite ends in failure for any
other failure, and for one of these that passes.
"""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web
from tools.programs import find_program

from tests.servers.node import find_node
from tests.servers.server import find_free_port

pytestmark = pytest.mark.full

EXPECTED = yaml.safe_load(Path(__file__).with_name("conformance.yaml").read_text())
SECONDS = 60
CONNECTION_HEADERS = {"connection", "transfer-encoding", "content-length", "content-encoding"}


async def start_suite(*options, folder):
    script = find_program("mcp-clients") / "node_modules" / ".bin" / "conformance"
    return await asyncio.create_subprocess_exec(
        *(find_node(), str(script), *options, "-o", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


def read_checks(folder):
    """Id and status of each check that ran."""
    checks = [json.loads(path.read_text()) for path in folder.rglob("checks.json")]
    return {each["id"]: each["status"] for scenario in checks for each in scenario}


@asynccontextmanager
async def authorize_all(target, key):
    """A proxy that adds a credential, which the suite cannot send, and changes nothing else.

    Yields its address.
    """
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def forward(request):
            # Host and Origin are what some scenarios are about
            sent = {**request.headers, "Authorization": f"Bearer {key}"}
            async with session.request(
                request.method, target + request.path_qs, headers=sent, data=await request.read()
            ) as answer:
                kept = {
                    name: value
                    for name, value in answer.headers.items()
                    if name.lower() not in CONNECTION_HEADERS
                }
                response = web.StreamResponse(status=answer.status, headers=kept)
                # a client that has seen enough of a stream leaves
                with suppress(ConnectionError):
                    await response.prepare(request)
                    async for piece in answer.content.iter_any():
                        await response.write(piece)
                return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        port = find_free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


async def test_authorization_server_conforms(client, browser, person, tmp_path):
    port = find_free_port()
    client.redirect = f"http://127.0.0.1:{port}/callback"
    await client.register()
    own = ("--url", client.base, "--client-id", client.id, "--resource", client.resource)
    suite = await start_suite("authorization", *own, "-p", str(port), folder=tmp_path)
    printed = []
    async with asyncio.timeout(SECONDS):
        async for line in suite.stdout:
            text = line.decode().strip()
            printed.append(text)
            if text.startswith(f"{client.base}/oauth/authorize?"):
                page = await client.approve(browser, person.accounts[0], text)
                async with aiohttp.ClientSession() as session, session.get(page.location) as back:
                    assert back.status == 200
        assert await suite.wait() == 0, "\n".join(printed)
    checks = read_checks(tmp_path)
    assert {"authorization-server-metadata", "authorization-code-grant"} <= checks.keys()
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_endpoint_conforms_but_for_what_is_listed(world, revision, tmp_path):
    expected = [
        check for group in EXPECTED if revision in group["revisions"] for check in group["checks"]
    ]
    listed = tmp_path / "expected.yaml"
    listed.write_text(yaml.safe_dump({"server": expected}))
    env = world.env
    async with authorize_all(env["GATEWAY_MCP_URL"], env["GATEWAY_API_KEY"]) as url:
        own = ("--url", f"{url}/mcp", "--requirements", revision)
        own += ("--expected-failures", str(listed))
        suite = await start_suite("server", *own, folder=tmp_path / "results")
        printed, _ = await asyncio.wait_for(suite.communicate(), SECONDS)
    assert suite.returncode == 0, printed.decode()[-6000:]
    assert "SUCCESS" in read_checks(tmp_path / "results").values()
