"""Objects as the documents that the commands print: flat, snake_case, money twice.

Money is whole micro-dollars (`…_micros`) and dollars as text; times are RFC 3339. Every field is
always there, null where nothing is known. Scripts rely on the names.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import Forbidden
from gateway_core.api.account import Funds
from gateway_core.api.ids import name_to_id
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import SpendLimit, subject_of_guardrail, subject_of_key
from gateway_core.api.money import to_decimal_text
from gateway_core.api.price import Price
from gateway_core.api.resource import Object, Resource
from gateway_core.api.task import name_phase
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.price_text import describe_price
from gateway_core.billing.prices import select_price
from gateway_core.billing.spending import render_balance, render_spending
from gateway_core.billing.usage import sum_usage

Document = dict[str, Any]
_UPPER = re.compile("([A-Z])")
DIRECT = ("http", "openai", "google")


def dollars(micros: int | None) -> str | None:
    """Return dollars as text; None stays."""
    return None if micros is None else to_decimal_text(micros)


def _show_money(**micros: int | None) -> Document:
    """Return each amount as dollars and as micro-dollars."""
    return {
        field: value
        for name, amount in micros.items()
        for field, value in ((name, dollars(amount)), (f"{name}_micros", amount))
    }


def _pick(spec: Mapping[str, Any], *names: str) -> Document:
    """Return fields of a spec, null where one is absent."""
    return {_UPPER.sub(r"_\1", name).lower(): spec.get(name) for name in names}


def describe_account(obj: Object) -> Document:
    """Return a GatewayAccount, with the money that its status has."""
    spec, status = obj["spec"], obj.get("status") or {}
    funds = spec.get("funds") or {}
    return {
        "name": obj["metadata"]["name"],
        **_pick(spec, "displayName", "owner"),
        **_show_money(
            balance=status.get("balanceMicros"),
            charged=status.get("chargedMicros"),
            paid=funds.get("paidMicros", 0),
            bonus=funds.get("bonusMicros", 0),
        ),
        "unlimited": spec.get("unlimited", False),
        "suspended": spec.get("suspended", False),
        # as the operator says, which knows the deployment's defaults
        **_pick({**status, **spec}, "requestsPerMinute", "storageBytes"),
        "webhook_secret": spec.get("webhookSecretRef"),
        "previous_webhook_secret": _describe_previous(spec.get("previousWebhookSecretRef")),
        **describe_state(obj),
    }


def describe_user(obj: Object) -> Document:
    """Return a GatewayUser."""
    spec = obj["spec"]
    return {
        "name": obj["metadata"]["name"],
        **_pick(spec, "displayName", "email"),
        "memberships": {m["accountName"]: m["role"] for m in spec.get("memberships") or ()},
        "suspended": spec.get("suspended", False),
        **describe_state(obj),
    }


def describe_key(obj: Object) -> Document:
    """Return a GatewayKey; neither its tokens nor their digests."""
    spec, status = obj["spec"], obj.get("status") or {}
    tokens = spec.get("tokens") or status.get("tokens") or ()
    current = _current_token(tokens)
    ends = [t["expirationTime"] for t in tokens if t is not current and "expirationTime" in t]
    return {
        **_identify(obj),
        "class": spec.get("class", "Standard").lower(),
        "display_name": spec["displayName"],
        "hint": current.get("hint"),
        "state": _find_key_state(spec),
        **_pick(spec, "createdBy", "secretName"),
        "old_secret_until": next(iter(ends), None),
        "expires_at": spec.get("expirationTime"),
        **_describe_limit(spec.get("limit"), status),
        "last_used_at": status.get("lastUsedTime"),
        **_pick(spec, "requestsPerMinute", "cacheSeconds", "allowedModels", "allowedProviders"),
        "metadata": spec.get("metadata") or {},
        **describe_state(obj),
    }


def describe_guardrail(obj: Object) -> Document:
    """Return a GatewayGuardrail."""
    spec = obj["spec"]
    return {
        **_identify(obj),
        **_pick(spec, "displayName", "description"),
        **_describe_limit(spec.get("limit"), obj.get("status") or {}),
        **_pick(spec, "requestsPerMinute", "cacheSeconds", "allowedModels", "deniedModels"),
        **_pick(spec, "allowedProviders", "deniedProviders"),
        "keys": spec.get("keyNames") or [],
        **describe_state(obj),
    }


def _identify(obj: Object) -> Document:
    """Return name, id and account of a key or guardrail."""
    name = obj["metadata"]["name"]
    return {"name": name, "id": name_to_id(name), "account": obj["spec"]["accountName"]}


def describe_task(obj: Object) -> Document:
    """Return a GatewayTask as an admin sees it, without its input."""
    spec, status = obj["spec"], obj.get("status") or {}
    request, upstream = spec["request"], status.get("upstream") or {}
    failure, callback = status.get("failure") or {}, status.get("callback") or {}
    return {
        "name": obj["metadata"]["name"],
        "id": name_to_id(obj["metadata"]["name"]),
        "account": request["accountName"],
        "key": request.get("keyName"),
        "operation": f"{request['service']}/{request['action']}",
        "model": request["modelId"],
        "phase": name_phase(status),
        **_pick(find_condition(obj, "Succeeded"), "reason", "message"),
        "desired_state": spec.get("desiredState", "Completed"),
        "error_code": failure.get("code"),
        "error": failure.get("message"),
        **_show_money(cost=status.get("chargedMicros")),
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
    """Return a GatewayModel, with its price of now."""
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
    """Return a GatewayProvider, without its headers: they may hold what is secret."""
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
    """Return the describer of a kind by its API type: all fields but the digests of secrets."""
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
    """Return the account with its money as of now in its status, counted from GatewayUsage.

    The operator writes the same figures once a minute. Calls under way hold more until they end,
    which only the API knows.
    """
    usage = await _read_usage(cluster, obj["metadata"]["name"])
    if usage is None:
        return obj
    funds = Funds.model_validate(obj["spec"].get("funds") or {})
    return _with_status(obj, render_balance(funds, sum_usage(usage).charged))


async def complete_budget(cluster: Cluster, obj: Object) -> Object:
    """Return the key or guardrail with its present use, and the next reset, in its status."""
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
    """Return a budget, and what the status has used of it."""
    most, used = limit["micros"] if limit else None, status.get("usedMicros")
    left = None if most is None or used is None else max(0, most - used)
    return {
        **_show_money(limit=most),
        "window": limit["window"] if limit else None,
        **_show_money(used=used, remaining=left),
        "resets_at": status.get("resetTime"),
    }


def describe_health(obj: Object) -> Document:
    """Return the calls of a provider or model in the last three minutes; null without any."""
    health = (obj.get("status") or {}).get("health") or {}
    return {
        "health": health.get("state"),
        **_pick(health, "callsPerMinute", "errorPercent"),
        "latency_ms": health.get("latencyMillis"),
        "first_token_ms": health.get("firstTokenMillis"),
    }


def describe_state(obj: Object) -> Document:
    """Return the Ready condition and the age."""
    ready = find_condition(obj, "Ready")
    return {
        "ready": ready.get("status"),
        **_pick(ready, "reason", "message"),
        "created_at": obj["metadata"].get("creationTimestamp"),
    }


def find_condition(obj: Object, kind: str) -> Mapping[str, Any]:
    """Return the condition of that type; empty if there is none."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def _describe_previous(ref: Mapping[str, Any] | None) -> Document | None:
    if ref is None:
        return None
    return {"name": ref["name"], "key": ref["key"], "expires_at": ref["expirationTime"]}


def _current_token(tokens: Any) -> Mapping[str, Any]:
    """Return the token that is not being rotated out."""
    lasting = [token for token in tokens if "expirationTime" not in token]
    found: Mapping[str, Any] = next(iter(lasting or list(tokens)), {})
    return found


def _find_key_state(spec: Mapping[str, Any]) -> str:
    """Return `active`, `disabled`, `expired` or `revoked`, as the REST API does (contract §9)."""
    if spec.get("revoked"):
        return "revoked"
    expires = spec.get("expirationTime")
    if expires and datetime.fromisoformat(expires) <= datetime.now(UTC):
        return "expired"
    return "disabled" if spec.get("disabled") else "active"


async def _read_usage(cluster: Cluster, account: str) -> list[Object] | None:
    """Return the account's usage; None where it may not be read: the status is shown as it is."""
    try:
        return await cluster.list_all(GatewayUsage, **{"spec.accountName": account})
    except Forbidden:
        return None


def _with_status(obj: Object, fields: dict[str, Any]) -> Object:
    return {**obj, "status": {**(obj.get("status") or {}), **fields}}
