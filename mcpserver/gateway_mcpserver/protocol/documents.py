"""Results that are the same for every caller: versions, capabilities, lists. Pure."""

from typing import Any

from mcp.types import SERVER_INFO_META_KEY
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from gateway_core.api.resource import RELEASE
from gateway_mcpserver.protocol.eras import Era, negotiate

SUBSCRIPTION_META_KEY = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO = {"name": "model-gateway", "title": "Model Gateway", "version": RELEASE}
CAPABILITIES: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
INSTRUCTIONS = (
    "Model Gateway runs generative models as tasks. Find a model with list_models, its params with"
    " get_model_info and its price with check_pricing; then call create_task with an"
    " idempotency_key of your own. If the task takes longer than the call, call get_task. Tasks"
    " cost money of the account; check_balance shows what is left."
)
LIST_TTL_MS = 300_000
_LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def describe_session(requested: object) -> dict[str, Any]:
    """Return the result of a legacy `initialize`."""
    return {
        "protocolVersion": negotiate(requested),
        "capabilities": CAPABILITIES,
        "serverInfo": SERVER_INFO,
        "instructions": INSTRUCTIONS,
    }


def describe_server() -> dict[str, Any]:
    """Return the result of a modern `server/discover`, without what every result has."""
    return {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": CAPABILITIES,
        "instructions": INSTRUCTIONS,
        "ttlMs": LIST_TTL_MS,
        "cacheScope": "private",
    }


def find_list(method: str, tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the result of a method that lists something, None for other methods."""
    member = _LISTS.get(method)
    if member is None:
        return None
    return {member: tools if member == "tools" else []}


def complete(era: Era, result: dict[str, Any], *, cacheable: bool = False) -> dict[str, Any]:
    """Return the result with what every result of its era has."""
    if era is Era.LEGACY:
        return result
    hints = {"ttlMs": LIST_TTL_MS, "cacheScope": "private"} if cacheable else {}
    meta = {**result.get("_meta", {}), SERVER_INFO_META_KEY: SERVER_INFO}
    return {"resultType": "complete", **result, **hints, "_meta": meta}
