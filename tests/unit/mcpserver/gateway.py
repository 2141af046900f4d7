"""The MCP process on the fakes of the API's tests, and a client of it."""

from functools import partial
from pathlib import Path
from typing import Any

import orjson

from gateway_mcpserver.app import McpParts, create_app, create_health_app
from gateway_mcpserver.cancellations import Cancellations
from gateway_mcpserver.settings import McpSettings
from gateway_mcpserver.tables import Tables
from gateway_web.context import Drain
from tests.fakes.informer import FakeInformer
from tests.unit.apiserver.gateway import ID_KEY, MODEL, PEPPERS, Answer, Gateway, call

MCP_URL = "http://127.0.0.1:8087"
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
PARAMS = {"prompt": "a cat", "reference_image_urls": ["https://example.com/a.png"]}


class McpGateway(Gateway):
    """An API and an MCP process with the same objects, counters and bytes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(maintenance=settings.get("maintenance", False))
        given = {"secrets_dir": Path("unused"), "store_dir": Path("unused"), **settings}
        chosen = McpSettings(**given)

        made: dict[str, FakeInformer[Any]] = {}
        tables = Tables(partial(self.make_informer, made), chosen.account_defaults)
        self.mcp_tables = made
        for kind in ("gatewaymodels", "gatewayaccounts", "gatewaykeys"):
            for obj in self.kube.list_objects(kind):
                made[kind].upsert(obj)
        self.mcp_drain = Drain()
        self.mcp_parts = McpParts(
            settings=chosen,
            kube=self.kube,
            counters=self.counters,
            store=self.store,
            tables=tables,
            rebuilder=self.api_parts.rebuilder,
            key_use=self.key_use,
            id_key=ID_KEY,
            peppers=PEPPERS,
            intake=self.intake,
            cancellations=Cancellations("unix:///nowhere"),
        )
        self.mcp = create_app(self.mcp_parts, self.mcp_drain)
        self.mcp_health = create_health_app(self.mcp_parts, self.mcp_drain)

    async def send(
        self,
        body: Any = None,
        *,
        key: str | None = "",
        method: str = "POST",
        path: str = "/mcp",
        raw: bytes | None = None,
        **headers: str | None,
    ) -> Answer:
        """One request; `key=None` sends no credential, a header None is left out."""
        given: dict[str, str | None] = {
            "host": "127.0.0.1:8087",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        if key is not None:
            given["authorization"] = f"Bearer {key or self.key}"
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = [(name, value) for name, value in given.items() if value is not None]
        content = orjson.dumps(body) if raw is None else raw
        return await call(self.mcp, method, path, headers=sent, content=content)

    async def ask(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> Answer:
        """A legacy request."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return await self.send(message, **more)

    async def ask_modern(
        self, method: str, params: dict[str, Any] | None = None, **more: Any
    ) -> Answer:
        """A modern request, its headers as its body says."""
        given = {"_meta": META, **(params or {})}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
        headers = {"mcp_protocol_version": MODERN, "mcp_method": method}
        if "name" in given:
            headers["mcp_name"] = given["name"]
        return await self.send(message, **{**headers, **more})

    async def use(self, tool: str, arguments: Any = None, **more: Any) -> Any:
        """The result of a call of a tool, in the legacy era."""
        params = {"name": tool, "arguments": arguments or {}}
        answer = await self.ask("tools/call", params, **more)
        assert answer.status == 200, answer.body
        return answer.json["result"]

    async def create(self, idempotency_key: str = "one", **changes: Any) -> Any:
        """The result of a call of `create_task`, which does not wait unless it is told to."""
        given = {
            "service": "sim",
            "action": "reference_to_video",
            "model": MODEL,
            "params": PARAMS,
            "idempotency_key": idempotency_key,
            "wait": False,
            **changes,
        }
        return await self.use("create_task", given)


def read_events(answer: Answer) -> list[Any]:
    """The messages of a stream, which must be written as the contract has it."""
    assert answer.headers["content-type"] == "text/event-stream"
    found = []
    for block in answer.body.decode().split("\n\n"):
        lines = block.split("\n")
        if block and not block.startswith(":"):
            assert lines[0] == "event: message"
            assert len(lines) == 2
            found.append(orjson.loads(lines[1].removeprefix("data: ")))
    return found
