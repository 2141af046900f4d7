"""Calls of MCP tools without an SDK, one connection for each."""

import json
from typing import Any

import aiohttp


async def call_tool(url: str, token: str, name: str, arguments: dict[str, Any]) -> Any:
    """What a tool returns, with a token or a key; the status where that is not 200."""
    params = {"name": name, "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Authorization": f"Bearer {token}", "MCP-Protocol-Version": "2025-11-25"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/mcp", json=body) as answer,
    ):
        text = await answer.text()
        if answer.status != 200:
            return answer.status
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    return json.loads(data[-1] if data else text)["result"]["structuredContent"]
