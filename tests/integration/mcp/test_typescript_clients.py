"""The MCP clients for TypeScript, unmodified, from sign-in to revocation (contract §10.2 to §10.8).

Release 1 opens a legacy session, release 2 also the stateless protocol of 2026-07-28.
"""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from tests.servers.node import find_node, link_packages

pytestmark = pytest.mark.full

FOLDER = Path(__file__).with_name("node")
GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "mcp.md").read_text()
TOOLS = re.findall(r"^\| `(\w+)` \| `mcp:", GUIDE, re.MULTILINE)
"""As the guide lists them."""


@pytest.fixture(scope="session")
def scripts(tmp_path_factory):
    return link_packages("mcp-clients", FOLDER, tmp_path_factory.mktemp("mcp"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("variant", ["sdk", "client legacy", "client auto"])
async def test_client_signs_in_works_refreshes_and_is_revoked(
    world, scripts, browser, person, variant
):
    env = world.env
    options = (env["GATEWAY_MCP_URL"], env["GATEWAY_SERVICE"], env["GATEWAY_MODEL"])
    process = await asyncio.create_subprocess_exec(
        *(find_node(), "flow.mjs", variant, *options),
        cwd=scripts,
        env={**os.environ, "KEY": env["GATEWAY_API_KEY"]},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    signed_in, seen = 0, None
    async for line in process.stdout:
        seen = json.loads(line)
        if "authorize" not in seen:
            continue
        signed_in += 1
        page = await browser.get(seen["authorize"])
        page = await browser.submit(page, "/oauth/authorize", account=person.accounts[0])
        page = await browser.submit(page, "/oauth/authorize", button="approve")
        process.stdin.write(f"{page.location}\n".encode())
    errors = (await process.stderr.read()).decode()
    assert await process.wait() == 0, errors

    assert seen["faults"] == []
    assert seen["tools"] == TOOLS
    assert seen["task"]["status"] == "completed"
    assert seen["task"]["completed"]
    assert seen["again"]["task_id"] == seen["task"]["task_id"]
    steps = [each["progress"] for each in seen["progress"]]
    assert steps == sorted(set(steps))
    assert steps
    assert seen["rotated"]
    assert signed_in == 2
    assert seen["balance"].keys() == seen["withKey"].keys()
