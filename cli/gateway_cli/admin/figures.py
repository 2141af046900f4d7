"""What one account was charged, and what one key or guardrail has used of its limit, as of now.

Counted from GatewayUsage by what the operator shows in statuses once a minute: what ended is in it
within seconds. Calls under way hold more until they end, which only the API knows.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway_cli.cluster import Object
from gateway_cli.cluster.errors import Forbidden
from gateway_core.contract.account import Funds
from gateway_core.contract.limits import SpendLimit
from gateway_core.contract.usage import GatewayUsage
from gateway_core.domain.standings import tell_balance, tell_spending
from gateway_core.domain.usage import sum_usage

if TYPE_CHECKING:
    from gateway_cli.admin.objects import GatewayObjects


async def complete_account(objects: "GatewayObjects", obj: Object) -> Object:
    """The account with its money as of now in its status."""
    usage = await _read_usage(objects, obj["metadata"]["name"])
    if usage is None:
        return obj
    funds = Funds.model_validate(obj["spec"].get("funds") or {})
    return _with_status(obj, tell_balance(funds, sum_usage(usage).charged))


async def complete_budget(objects: "GatewayObjects", obj: Object, subject: str) -> Object:
    """The key or guardrail with what it has used, and when that becomes less, in its status."""
    usage = await _read_usage(objects, obj["spec"]["accountName"])
    if usage is None:
        return obj
    limit = obj["spec"].get("limit")
    spent = sum_usage(usage, [subject]).spent[subject]
    parsed = SpendLimit.model_validate(limit) if limit else None
    fields = tell_spending(parsed, spent, datetime.now(UTC))
    return _with_status(obj, fields)


async def _read_usage(objects: "GatewayObjects", account: str) -> list[Object] | None:
    """The account's usage; None where it may not be read: the status is shown as it is."""
    try:
        return await objects.list_all(GatewayUsage, **{"spec.accountName": account})
    except Forbidden:
        return None


def _with_status(obj: Object, fields: dict[str, Any]) -> Object:
    return {**obj, "status": {**(obj.get("status") or {}), **fields}}
