"""Objects as the documents that the commands print: flat, snake_case, money twice.

Money is whole micro-dollars (`…_micros`) and dollars as text; times are RFC 3339. Every field is
always there, null where nothing is known. Scripts rely on the names.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import Forbidden
from gateway_core.api.account import Funds
from gateway_core.api.ids import name_to_id
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import SpendLimit, subject_of_guardrail, subject_of_key
from gateway_core.api.model import Price
from gateway_core.api.money import to_decimal_text
from gateway_core.api.resource import Object, Resource
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.price_text import describe_price
from gateway_core.billing.prices import select_price
from gateway_core.billing.spending import render_balance, render_spending
from gateway_core.billing.usage import sum_usage

Document = dict[str, Any]
DIRECT = ("http", "openai", "google")


def dollars(micros: int | None) -> str | None:
    """Dollars as text; None stays."""
    return None if micros is None else to_decimal_text(micros)


def describe_account(obj: Object) -> Document:
    """A GatewayAccount, with the money that its status has."""
    spec, status = obj["spec"], obj.get("status") or {}
    funds = spec.get("funds") or {}
    paid, bonus = funds.get("paidMicros", 0), funds.get("bonusMicros", 0)
    balance, charged = status.get("balanceMicros"), status.get("chargedMicros")
    return {
        "name": obj["metadata"]["name"],
        "display_name": spec["displayName"],
        "owner": spec["owner"],
        "balance": dollars(balance),
        "balance_micros": balance,
        "charged": dollars(charged),
        "charged_micros": charged,
        "paid": dollars(paid),
        "paid_micros": paid,
        "bonus": dollars(bonus),
        "bonus_micros": bonus,
        "unlimited": spec.get("unlimited", False),
        "suspended": spec.get("suspended", False),
        # as the operator says, which knows the deployment's defaults
        "requests_per_minute": spec.get("requestsPerMinute", status.get("requestsPerMinute")),
        "storage_bytes": spec.get("storageBytes", status.get("storageBytes")),
        "webhook_secret": spec.get("webhookSecretRef"),
        "previous_webhook_secret": _describe_previous(spec.get("previousWebhookSecretRef")),
        **describe_state(obj),
    }


def describe_user(obj: Object) -> Document:
    """A GatewayUser."""
    spec = obj["spec"]
    return {
        "name": obj["metadata"]["name"],
        "display_name": spec["displayName"],
        "email": spec["email"],
        "memberships": {m["accountName"]: m["role"] for m in spec.get("memberships") or ()},
        "suspended": spec.get("suspended", False),
        **describe_state(obj),
    }


def describe_key(obj: Object) -> Document:
    """A GatewayKey; neither its tokens nor their digests."""
    spec, status = obj["spec"], obj.get("status") or {}
    tokens = spec.get("tokens") or status.get("tokens") or ()
    current = _current_token(tokens)
    return {
        "name": obj["metadata"]["name"],
        "id": name_to_id(obj["metadata"]["name"]),
        "account": spec["accountName"],
        "class": spec.get("class", "Standard").lower(),
        "display_name": spec["displayName"],
        "hint": current.get("hint"),
        "state": _find_key_state(spec),
        "created_by": spec.get("createdBy"),
        "secret_name": spec.get("secretName"),
        "old_secret_until": next(
            (t["expirationTime"] for t in tokens if t is not current and "expirationTime" in t),
            None,
        ),
        "expires_at": spec.get("expirationTime"),
        **_describe_limit(spec.get("limit"), status),
        "last_used_at": status.get("lastUsedTime"),
        "requests_per_minute": spec.get("requestsPerMinute"),
        "cache_seconds": spec.get("cacheSeconds"),
        "allowed_models": spec.get("allowedModels"),
        "allowed_providers": spec.get("allowedProviders"),
        "metadata": spec.get("metadata") or {},
        **describe_state(obj),
    }


def describe_guardrail(obj: Object) -> Document:
    """A GatewayGuardrail."""
    spec = obj["spec"]
    return {
        "name": obj["metadata"]["name"],
        "id": name_to_id(obj["metadata"]["name"]),
        "account": spec["accountName"],
        "display_name": spec["displayName"],
        "description": spec.get("description"),
        **_describe_limit(spec.get("limit"), obj.get("status") or {}),
        "requests_per_minute": spec.get("requestsPerMinute"),
        "cache_seconds": spec.get("cacheSeconds"),
        "allowed_models": spec.get("allowedModels"),
        "denied_models": spec.get("deniedModels"),
        "allowed_providers": spec.get("allowedProviders"),
        "denied_providers": spec.get("deniedProviders"),
        "keys": spec.get("keyNames") or [],
        **describe_state(obj),
    }


def describe_task(obj: Object) -> Document:
    """A GatewayTask as an admin sees it, without its input."""
    spec, status = obj["spec"], obj.get("status") or {}
    request, upstream = spec["request"], status.get("upstream") or {}
    callback = status.get("callback") or {}
    failure = status.get("failure") or {}
    charged = status.get("chargedMicros")
    return {
        "name": obj["metadata"]["name"],
        "id": name_to_id(obj["metadata"]["name"]),
        "account": request["accountName"],
        "key": request.get("keyName"),
        "operation": f"{request['service']}/{request['action']}",
        "model": request["modelId"],
        "phase": status.get("phase"),
        "desired_state": spec.get("desiredState", "Completed"),
        "error_code": failure.get("code"),
        "error": failure.get("message"),
        "cost": dollars(charged),
        "cost_micros": charged,
        "provider": upstream.get("providerName"),
        "job": upstream.get("jobId"),
        "videos": [video["url"] for video in (status.get("result") or {}).get("videos") or ()],
        "callback_url": request.get("callbackUrl"),
        "callback_state": callback.get("state"),
        "callback_attempts": callback.get("attempts"),
        "callback_next_at": callback.get("nextAttemptTime"),
        "callback_last_answer": callback.get("lastAnswer"),
        "redeliveries": spec.get("redeliveries", 0),
        "created_at": obj["metadata"].get("creationTimestamp"),
        "finished_at": status.get("completionTime"),
    }


def describe_model(obj: Object) -> Document:
    """A GatewayModel, with its price of now."""
    spec = obj["spec"]
    prices = [Price.model_validate(price) for price in spec.get("prices") or ()]
    price = select_price(prices, datetime.now(UTC))
    return {
        "name": obj["metadata"]["name"],
        "model": spec["modelId"],
        "display_name": spec.get("displayName"),
        "service": spec["service"],
        "action": spec["action"],
        "disabled": spec.get("disabled", False),
        "deprecated": spec.get("deprecated", False),
        "routes": [
            {
                "name": route["name"],
                "provider": route["providerName"],
                "upstream_model": route["upstreamModel"],
                "priority": route.get("priority", 0),
                "weight": route.get("weight", 1),
            }
            for route in spec["routes"]
        ],
        "price": None if price is None else describe_price(price),
        "prices": [each.model_dump(exclude_none=True) for each in prices],
        **describe_health(obj),
        **describe_state(obj),
    }


def describe_provider(obj: Object) -> Document:
    """A GatewayProvider, without its headers: they may hold what is secret."""
    spec = obj["spec"]
    declared: Document = next((spec[kind] for kind in DIRECT if spec.get(kind)), {})
    return {
        "name": obj["metadata"]["name"],
        "type": spec["type"],
        "url": declared.get("baseUrl"),
        "credentials_secret": spec.get("credentialsSecretRef"),
        "max_concurrent_requests": spec.get("maxConcurrentRequests", 64),
        "requests_per_second": spec.get("requestsPerSecond"),
        **describe_health(obj),
        **describe_state(obj),
    }


def describe_spec(kind: type[Resource]) -> Callable[[Object], Document]:
    """The documents of a kind by its API type: all fields of its spec but secrets' digests."""
    spec, status = (kind.model_fields[part].annotation for part in ("spec", "status"))
    hidden = {"secret", "refresh_token", "access_tokens", "conditions", "observed_generation"}

    def describe(obj: Object) -> Document:
        return {
            "name": obj["metadata"]["name"],
            **{
                name: (obj.get(part) or {}).get(field.alias)
                for part, model in (("spec", spec), ("status", status))
                for name, field in model.model_fields.items()  # type: ignore[union-attr]
                if name not in hidden
            },
            "created_at": obj["metadata"].get("creationTimestamp"),
        }

    return describe


async def complete_account(cluster: Cluster, obj: Object) -> Object:
    """The account with its money as of now in its status, counted from GatewayUsage.

    The operator writes the same figures once a minute. Calls under way hold more until they end,
    which only the API knows.
    """
    usage = await _read_usage(cluster, obj["metadata"]["name"])
    if usage is None:
        return obj
    funds = Funds.model_validate(obj["spec"].get("funds") or {})
    return _with_status(obj, render_balance(funds, sum_usage(usage).charged))


async def complete_budget(cluster: Cluster, obj: Object) -> Object:
    """The key or guardrail with what it has used, and when that becomes less, in its status."""
    is_key = obj["kind"] == GatewayKey.kind_name
    subject = (subject_of_key if is_key else subject_of_guardrail)(obj["metadata"]["name"])
    usage = await _read_usage(cluster, obj["spec"]["accountName"])
    if usage is None:
        return obj
    limit = obj["spec"].get("limit")
    spent = sum_usage(usage, [subject]).spent[subject]
    parsed = SpendLimit.model_validate(limit) if limit else None
    fields = render_spending(parsed, spent, datetime.now(UTC))
    return _with_status(obj, fields)


def _describe_limit(limit: Mapping[str, Any] | None, status: Mapping[str, Any]) -> Document:
    """A budget, and what the status has used of it."""
    most = limit["micros"] if limit else None
    used = status.get("usedMicros")
    left = None if most is None or used is None else max(0, most - used)
    return {
        "limit": dollars(most),
        "limit_micros": most,
        "window": limit["window"] if limit else None,
        "used": dollars(used),
        "used_micros": used,
        "remaining": dollars(left),
        "remaining_micros": left,
        "resets_at": status.get("resetTime"),
    }


def describe_health(obj: Object) -> Document:
    """Calls of a provider or model in the last three minutes; null without any."""
    health = (obj.get("status") or {}).get("health") or {}
    return {
        "health": health.get("state"),
        "calls_per_minute": health.get("callsPerMinute"),
        "error_percent": health.get("errorPercent"),
        "latency_ms": health.get("latencyMillis"),
        "first_token_ms": health.get("firstTokenMillis"),
    }


def describe_state(obj: Object) -> Document:
    """The Ready condition and the age."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    ready: Mapping[str, Any] = next((c for c in conditions if c["type"] == "Ready"), {})
    return {
        "ready": ready.get("status"),
        "reason": ready.get("reason"),
        "message": ready.get("message"),
        "created_at": obj["metadata"].get("creationTimestamp"),
    }


def _describe_previous(ref: Mapping[str, Any] | None) -> Document | None:
    if ref is None:
        return None
    return {"name": ref["name"], "key": ref["key"], "expires_at": ref["expirationTime"]}


def _current_token(tokens: Any) -> Mapping[str, Any]:
    """The token that is not being rotated out."""
    lasting = [token for token in tokens if "expirationTime" not in token]
    found: Mapping[str, Any] = next(iter(lasting or list(tokens)), {})
    return found


def _find_key_state(spec: Mapping[str, Any]) -> str:
    """`active`, `disabled`, `expired` or `revoked`, as the REST API says it (contract §9)."""
    if spec.get("revoked"):
        return "revoked"
    expires = spec.get("expirationTime")
    if expires and datetime.fromisoformat(expires) <= datetime.now(UTC):
        return "expired"
    return "disabled" if spec.get("disabled") else "active"


async def _read_usage(cluster: Cluster, account: str) -> list[Object] | None:
    """The account's usage; None where it may not be read: the status is shown as it is."""
    try:
        return await cluster.list_all(GatewayUsage, **{"spec.accountName": account})
    except Forbidden:
        return None


def _with_status(obj: Object, fields: dict[str, Any]) -> Object:
    return {**obj, "status": {**(obj.get("status") or {}), **fields}}
