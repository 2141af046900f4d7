"""A bare MCP client, for tests that need every byte of a call in their own hands."""

import asyncio
import json
from typing import Any, Self

import aiohttp

HEADERS = {"Accept": "application/json, text/event-stream"}


class McpCaller:
    """Calls of one credential at one MCP process; `async with` opens its connections."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = f"{url}/mcp"
        self._headers = {**HEADERS, **({"Authorization": f"Bearer {key}"} if key else {})}

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=300)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=self._headers
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, method: str, params: Any = None, request_id: Any = 1) -> tuple[int, Any]:
        """Status and last message of a legacy request."""
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}
        async with self._session.post(self.url, json=body) as answer:
            raw = await answer.read()
            if answer.content_type == "text/event-stream":
                raw = raw.rstrip().rpartition(b"data: ")[2]
            return answer.status, json.loads(raw) if raw else None

    async def notify(self, method: str, params: Any) -> None:
        body = {"jsonrpc": "2.0", "method": method, "params": params}
        async with self._session.post(self.url, json=body) as answer:
            assert answer.status == 202, await answer.text()

    async def use(self, tool: str, arguments: Any, request_id: Any = 1) -> Any:
        """The structured content of a call that succeeds."""
        params = {"name": tool, "arguments": arguments}
        status, message = await self.send("tools/call", params, request_id)
        assert status == 200, message
        result = message["result"]
        assert result["isError"] is False, result
        return result["structuredContent"]


async def call_tool(url: str, token: str, name: str, arguments: dict[str, Any]) -> Any:
    """Return what a tool does for a token or a key, or the status where that is not 200."""
    async with McpCaller(url, token) as caller:
        params = {"name": name, "arguments": arguments}
        status, message = await caller.send("tools/call", params)
        return message["result"]["structuredContent"] if status == 200 else status


def describe_task(world: Any, key: str, **changes: Any) -> dict[str, Any]:
    """Arguments of `create_task` for the world's model, as `Client.create` has them."""
    params = {
        "prompt": "a lighthouse",
        "reference_image_urls": ["https://example.com/a.png"],
        "duration_seconds": 3,
    }
    return {
        "service": world.env["GATEWAY_SERVICE"],
        "action": "reference_to_video",
        "model": world.env["GATEWAY_MODEL"],
        "idempotency_key": key,
        "params": params,
        **changes,
    }


async def open_silent(port: int, count: int, sent: bytes = b"") -> list[asyncio.StreamWriter]:
    """Connections that send only the beginning of a request, or nothing."""
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writers.append(writer)
    return writers
