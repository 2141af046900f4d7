"""Standing objects as an admin applies them: good ones, but for what a test gives."""

from typing import Any

from tests.fakes.kubernetes import FakeKubernetes

OWNER = {"name": "Dana", "email": "dana@example.com"}
TOKEN = {"id": "abcdefgh", "digest": "0" * 64, "hint": "sk-ab…yz"}
"""It opens nothing."""


class Declarations:
    """Puts objects into `kube`; members of `spec` replace those of the good object."""

    kube: FakeKubernetes

    def put(self, plural: str, name: str, spec: dict[str, Any]) -> None:
        self.kube.put(plural, {"metadata": {"name": name}, "spec": spec})

    def put_account(self, name: str = "demo", **spec: Any) -> None:
        self.put("gatewayaccounts", name, {"displayName": name, "owner": OWNER, **spec})

    def put_key(self, name: str = "key-a", **spec: Any) -> None:
        base = {"accountName": "demo", "displayName": name, "tokens": [TOKEN]}
        self.put("gatewaykeys", name, {**base, **spec})

    def put_user(self, name: str, *accounts: str, role: str = "member", **spec: Any) -> None:
        memberships = [{"accountName": account, "role": role} for account in accounts]
        base = {"displayName": name, "email": f"{name}@example.com", "memberships": memberships}
        self.put("gatewayusers", name, {**base, **spec})

    def put_guardrail(self, name: str, *keys: str, **spec: Any) -> None:
        base = {
            "accountName": "demo",
            "displayName": name.removeprefix("grd-"),
            "keyNames": list(keys),
        }
        self.put("gatewayguardrails", name, {**base, **spec})

    def put_provider(self, name: str = "simulated", **spec: Any) -> None:
        self.put("gatewayproviders", name, {"type": "fake", **spec})

    def put_model(self, name: str = "model", **spec: Any) -> None:
        base = {
            "modelId": name,
            "service": "sim",
            "action": "reference_to_video",
            "routes": [{"name": "main", "providerName": "simulated", "upstreamModel": "q4"}],
            "prices": [{"perCallMicros": 1}],
        }
        self.put("gatewaymodels", name, {**base, **spec})
