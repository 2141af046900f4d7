"""A user of an MCP client: registration, sign-in, consent, tokens, and a task by a tool.

Runs in a pod of the cluster, on the gateway's own image, beside `tests/servers/browser.py`. At some
steps it waits until it is told to go on, since a pod of the gateway is killed then; a request that
nothing answers is sent again, as clients do.
"""

import asyncio
import json
import os
import time
import uuid
from pathlib import Path
from urllib.parse import urlencode

import aiohttp

from tests.servers.browser import Browser, make_pkce

BASE, MCP = os.environ["GATEWAY_BASE_URL"], os.environ["GATEWAY_MCP_URL"]
REDIRECT = "https://app.example.com/callback"
VERSION = "2025-11-25"
PATIENCE = 60.0


async def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline, "it takes too long"
        await asyncio.sleep(0.1)


async def pause(step):
    """Tell that a step is reached, and wait to go on."""
    print(f"reached {step}", flush=True)

    async def may_go_on():
        return Path(f"/tmp/{step}").exists()

    await until(may_go_on)


async def persist(attempt):
    """What comes of an attempt, made again while nothing answers."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await attempt()
            except (aiohttp.ClientError, OSError) as error:
                print(f"again after {error!r}", flush=True)
                await asyncio.sleep(0.5)


async def post(session, path, *, base=BASE, **given):
    """Status and document of a POST."""

    async def attempt():
        async with session.post(base + path, **given) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None

    return await persist(attempt)


async def call_tool(session, token, name, arguments):
    """What a tool returns, whether the response is JSON or a stream of events."""
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
    }
    timeout = aiohttp.ClientTimeout(total=PATIENCE)

    async def attempt():
        sent = {"json": body, "headers": headers, "timeout": timeout}
        async with session.post(f"{MCP}/mcp", **sent) as answer:
            text = await answer.text()
            if answer.status != 200:
                return answer.status, text
        data = [line[6:] for line in text.splitlines() if line.startswith("data: ")] or [text]
        message = json.loads(data[-1])
        if "id" not in message:
            raise ConnectionResetError("the stream ends without a response")
        return 200, message["result"]

    return await persist(attempt)


async def sign_in(path):
    """The parameters of the redirect back to the client, the user having allowed it."""
    async with Browser(BASE) as browser:
        page = await browser.follow(await browser.get(path))
        form = {"email": os.environ["MCP_EMAIL"], "password": os.environ["MCP_PASSWORD"]}
        page = await browser.follow(await browser.submit(page, "/sign-in", **form))
        page = await browser.submit(page, "/oauth/authorize", account=os.environ["MCP_ACCOUNT"])
        page = await browser.submit(page, "/oauth/authorize", button="approve")
        assert page.location.startswith(REDIRECT), page
        return page.parameters


async def main():
    async with aiohttp.ClientSession() as session:
        asked = {"client_name": "E2E client", "redirect_uris": [REDIRECT]}
        status, client = await post(session, "/oauth/register", json=asked)
        assert status == 201, client
        await pause("registered")
        verifier, challenge = make_pkce()
        query = {
            "response_type": "code",
            "client_id": client["client_id"],
            "redirect_uri": REDIRECT,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "state": "s",
            "resource": MCP,
        }
        path = f"/oauth/authorize?{urlencode(query)}"
        back = await persist(lambda: sign_in(path))
        assert (back["state"], back["iss"]) == ("s", BASE), back
        await pause("allowed")
        form = {"client_id": client["client_id"]}
        redemption = {
            "grant_type": "authorization_code",
            "code": back["code"],
            "redirect_uri": REDIRECT,
            "code_verifier": verifier,
        }
        status, tokens = await post(session, "/oauth/token", data={**form, **redemption})
        assert status == 200, tokens

        status, balance = await call_tool(session, tokens["access_token"], "check_balance", {})
        assert status == 200, balance
        assert balance["structuredContent"], balance
        await pause("connected")
        task = {
            "service": "sim",
            "action": "reference_to_video",
            "model": "sim-q4-reference-to-video",
            "idempotency_key": str(uuid.uuid4()),
            "params": {
                "prompt": "A lighthouse",
                "reference_image_urls": ["https://x.example/a.png"],
            },
        }
        token = tokens["access_token"]
        waiting = asyncio.create_task(call_tool(session, token, "create_task", task))
        await pause("waiting")
        status, made = await waiting
        assert status == 200, made
        assert made["structuredContent"]["status"] == "completed", made
        # whatever replica made it, there is one task by this key
        status, again = await call_tool(session, token, "create_task", task)
        assert again["structuredContent"]["task_id"] == made["structuredContent"]["task_id"], again

        refresh = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
        status, tokens = await post(session, "/oauth/token", data={**form, **refresh})
        assert status == 200, tokens
        revocation = {**form, "token": tokens["refresh_token"]}
        assert (await post(session, "/oauth/revoke", data=revocation))[0] == 200

        async def is_refused():
            answer = await call_tool(session, tokens["access_token"], "check_balance", {})
            return answer[0] == 401

        await until(is_refused)


if __name__ == "__main__":
    asyncio.run(main())
