"""What is wrong with objects, as of their specs and statuses."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway_cli.admin.documents import (
    describe_account,
    describe_guardrail,
    describe_health,
    describe_key,
    describe_state,
)
from gateway_cli.inspection.findings import Finding, error, note, warning
from gateway_core.api.resource import Object
from gateway_core.api.task import SETTLED

KEY_DAYS = 7
"""A key that ends within so many days is reported."""
USED_SHARE = 0.9
LEFT_SHARE = 0.1
"""Shares of a limit, and of an account's funds, that are near the end."""
UNSEEN_SECONDS = 120
SUBMITTING_SECONDS = 600
LATE_SECONDS = 300
"""Beyond its deadline, after which the operator should have failed a task."""
LEFTOVER_SECONDS = 3600
CHOSEN = ("Suspended", "Disabled", "Revoked", "Expired")
"""Reasons for which an object is not Ready by an admin's or client's own choice, or with time."""

ACTIONS = {
    "SecretNotFound": "create the Secret that its spec names, in the same namespace",
    "SecretForbidden": (
        "let the process read the Secret: chart values operator.secretNames and"
        " moderation.providerSecrets"
    ),
    "SecretNotWritable": "let the operator write the Secret: chart value operator.keySecretNames",
    "ProviderNotFound": "create the provider, or correct spec.routes",
    "ProviderNotReady": "see the provider's own finding",
    "PriceMissing": "add spec.prices; a model without a price takes no calls",
    "AccountNotFound": "create the account, or delete the object",
    "DuplicateModel": "delete one of the models with this modelId",
    "AdapterNotFound": "install the adapter's package in the operator's image",
}


def check_ready(objects: Iterable[Object], word: str, now: datetime) -> Iterator[Finding]:
    """Objects that should be Ready and are not."""
    for obj in objects:
        state, name = describe_state(obj), obj["metadata"]["name"]
        if state["ready"] == "True" or state["reason"] in CHOSEN:
            continue
        if state["ready"] is None:
            if _age(obj, now) > UNSEEN_SECONDS:
                text = "the operator has not looked at it"
                yield error(f"{word} {name}", text, "look whether the operator runs, and its log")
            continue
        text = f"not Ready: {state['reason']}: {state['message']}"
        action = ACTIONS.get(state["reason"] or "", "correct what the message names")
        yield error(f"{word} {name}", text, action)


def check_health(objects: Iterable[Object], word: str) -> Iterator[Finding]:
    """Providers and models whose calls fail, or whose circuits are open."""
    for obj in objects:
        health, name = describe_health(obj), obj["metadata"]["name"]
        if health["health"] not in ("Degraded", "Failing"):
            continue
        make = error if health["health"] == "Failing" else warning
        text = (
            f"{health['health']}: {health['error_percent']} % of"
            f" {health['calls_per_minute']} calls a minute fail, or a circuit is open"
        )
        look = f"`gatewayctl providers test {name}`" if word == "provider" else "see its providers"
        yield make(f"{word} {name}", text, f"{look}; the logs of operator and API have the errors")


def check_accounts(objects: Iterable[Object]) -> Iterator[Finding]:
    """Accounts whose funds are spent or nearly so."""
    for obj in objects:
        account = describe_account(obj)
        balance, paid = account["balance_micros"], account["paid_micros"] + account["bonus_micros"]
        if account["unlimited"] or account["suspended"] or balance is None or not paid:
            continue
        if balance <= 0:
            text = f"its funds are spent (balance {account['balance']} USD): paid calls get 402"
        elif balance < LEFT_SHARE * paid:
            text = f"{account['balance']} USD are left; {account['charged']} USD are charged so far"
        else:
            continue
        name = account["name"]
        yield warning(f"account {name}", text, f"`gatewayctl fund {name} DOLLARS --reference …`")


def check_keys(objects: Iterable[Object], now: datetime) -> Iterator[Finding]:
    """Active keys that end soon, or whose limits are nearly used up."""
    soon = now + timedelta(days=KEY_DAYS)
    for obj in objects:
        key = describe_key(obj)
        if key["state"] != "active":
            continue
        subject = f"key {key['name']}"
        if key["expires_at"] and datetime.fromisoformat(key["expires_at"]) < soon:
            yield warning(
                subject,
                f"expires at {key['expires_at']}",
                f"`gatewayctl keys set {key['name']} --expires TIME`, or make another",
            )
        yield from _check_limit(key, subject, f"`gatewayctl keys limit set {key['name']} …`")


def check_guardrails(objects: Iterable[Object]) -> Iterator[Finding]:
    """Guardrails whose limits are nearly used up."""
    for obj in objects:
        guardrail = describe_guardrail(obj)
        name = guardrail["name"]
        action = f"`gatewayctl guardrails limit set {name} …`"
        yield from _check_limit(guardrail, f"guardrail {name}", action)


def check_tasks(objects: Iterable[Object], now: datetime) -> Iterator[Finding]:
    """Unsettled tasks that have stopped moving."""
    for obj in objects:
        name, status = obj["metadata"]["name"], obj.get("status") or {}
        age, phase = _age(obj, now), status.get("phase")
        subject = f"task {name}"
        action = f"`gatewayctl tasks describe {name}`; the operator's log has its name"
        deadline = obj["spec"].get("deadlineSeconds", 3600)
        if status.get("work") == SETTLED:
            continue
        if phase in ("Completed", "Failed"):
            waits = (status.get("callback") or {}).get("state") == "Pending"
            since = status.get("completionTime")
            if not waits and since and _seconds(since, now) > LEFTOVER_SECONDS:
                text = f"ended at {since}, and is not archived and charged yet"
                yield warning(subject, text, action)
        elif age > deadline + LATE_SECONDS:
            text = f"{phase or 'Pending'} after its deadline of {deadline} s, {age} s old"
            yield error(subject, text, action)
        elif phase in (None, "Pending") and age > UNSEEN_SECONDS:
            yield error(subject, f"no operator has taken it up, {age} s old", action)
        elif phase == "Submitting" and age > SUBMITTING_SECONDS:
            provider = (status.get("upstream") or {}).get("providerName", "none")
            text = f"not accepted by a provider ({provider}) after {age} s"
            yield warning(subject, text, action)


def check_catalog(
    providers: list[Object], models: list[Object], accounts: list[Object]
) -> Iterator[Finding]:
    """What a gateway needs to answer any call."""
    for found, word, where in (
        (providers, "provider", "docs/providers.md"),
        (models, "model", "docs/providers.md"),
        (accounts, "account", "`gatewayctl accounts create`"),
    ):
        if not found:
            yield note("installation", f"there is no {word} yet: no call can be served", where)


def _check_limit(document: Mapping[str, Any], subject: str, action: str) -> Iterator[Finding]:
    most, used = document["limit_micros"], document["used_micros"]
    if most and used is not None and used >= USED_SHARE * most:
        resets = f"; it resets at {document['resets_at']}" if document["resets_at"] else ""
        text = f"{document['used']} of {document['limit']} USD ({document['window']}) are used"
        yield warning(subject, text + resets, f"{action}, if it should have more")


def _age(obj: Object, now: datetime) -> int:
    created = obj["metadata"].get("creationTimestamp")
    return _seconds(created, now) if created else 0


def _seconds(time: str, now: datetime) -> int:
    return int((now.astimezone(UTC) - datetime.fromisoformat(time)).total_seconds())
