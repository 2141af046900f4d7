"""The MCP conformance suite, unmodified, against the real processes."""

import asyncio
import json

import aiohttp
from tools.programs import find_program

from tests.servers.node import find_node
from tests.servers.server import find_free_port

SECONDS = 60


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
