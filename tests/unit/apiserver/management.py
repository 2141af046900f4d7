"""Platform Management on fakes: what the tests of it work with."""

from collections.abc import Mapping
from typing import Any

import orjson

from tests.unit.apiserver.gateway import Answer, Gateway, call

ROOT = "/api/v1/management"


class Office:
    """Calls with a management key of `demo`, unless another key is named."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.key = gateway.put_key("demo", "Management")
        self.other_key = gateway.put_key("guest", "Management")

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answer:
        """One call of a path below the root; `body` goes as JSON, `content` as it is."""
        sent = {"Authorization": f"Bearer {key or self.key}", **(headers or {})}
        if body is not None:
            content = orjson.dumps(body)
            sent.setdefault("Content-Type", "application/json")
        if content is not None:
            sent["Content-Length"] = str(len(content))
        if idempotency_key is not None:
            sent["Idempotency-Key"] = idempotency_key
        return await call(
            self.gateway.app,
            method,
            ROOT + path,
            headers=list(sent.items()),
            content=content or b"",
            query=query,
        )

    async def make(self, path: str = "/keys", *, key: str | None = None, **body: Any) -> Any:
        """What a POST has made."""
        answer = await self.ask("POST", path, {"name": "one", **body}, key=key)
        assert answer.status == 201, answer.body
        return answer.json

    async def show(self, path: str, query: str = "") -> Any:
        """What a GET shows."""
        answer = await self.ask("GET", path, query=query)
        assert answer.status == 200, answer.body
        return answer.json

    def read(self, wire_id: str) -> dict[str, Any]:
        """The object of a key or guardrail."""
        plural = "gatewaykeys" if wire_id.startswith("key_") else "gatewayguardrails"
        name = wire_id.replace("_", "-", 1)
        return next(
            obj for obj in self.gateway.kube.list_objects(plural) if obj["metadata"]["name"] == name
        )

    def count(self, plural: str, account: str = "demo") -> int:
        """How many objects of a kind the account has, without those that are being deleted."""
        objects = self.gateway.kube.list_objects(plural)
        current = [obj for obj in objects if "deletionTimestamp" not in obj["metadata"]]
        return sum(obj["spec"]["accountName"] == account for obj in current)
