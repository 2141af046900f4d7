"""Problems of objects, by their specs and statuses, and of their CRDs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from gateway_cli.admin.documents import (
    describe_account,
    describe_guardrail,
    describe_health,
    describe_key,
    describe_state,
    find_condition,
)
from gateway_cli.inspection.findings import Finding, error, note, warning
from gateway_core.api.account import GatewayAccount
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import WAIT_PREFIX
from gateway_core.api.crd import KINDS, build_crd
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import GROUP
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import RELEASE, Object, Resource
from gateway_core.api.task import SETTLED, GatewayTask
from gateway_core.api.upload import GatewayUpload

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
APPLY = (
    "upgrade the chart with crds.install=true, or `kubectl apply --server-side -f crds/` of the"
    " release that the processes run"
)
MOST_NAMES = 5
FIRST_STEPS = {
    "provider": "docs/providers.md",
    "model": "docs/providers.md",
    "account": "`gatewayctl accounts create`",
}
"""Kinds without which no call can be answered, and where their making is described."""
CHOSEN = ("Suspended", "Disabled", "Revoked", "Expired")
"""Reasons for which an object is not Ready by an admin's or client's own choice, or with time."""

ACTIONS = {
    "CredentialsRefused": (
        "correct the Secret that spec.credentialsSecretRef names (for a 404 the address or model),"
        " then `gatewayctl providers test {}`"
    ),
    "SecretNotFound": "create the Secret that its spec names, in the same namespace",
    "SecretForbidden": (
        "let the process read the Secret: chart values operator.secretNames and"
        " moderation.providerSecrets"
    ),
    "SecretNotWritable": "delete that Secret, or name another one in spec.secretName",
    "ProviderNotFound": "create the provider, or correct spec.routes",
    "ProviderNotReady": "see the provider's own finding",
    "PriceMissing": "add spec.prices; a model without a price takes no calls",
    "AccountNotFound": "create the account, or delete the object",
    "DuplicateModel": "delete one of the models with this modelId",
    "AdapterNotFound": "install the adapter's package in the operator's image",
}
KEY_ACTIONS = {
    "SecretForbidden": "let the operator write the Secret: chart value operator.keySecretNames",
}
"""Actions for keys, where a reason means something else than at providers and accounts."""

NOTES = {
    "NotTested": (note, "`gatewayctl providers test {}`"),
    "CallsFail": (warning, "`gatewayctl providers test {}`"),
    "NameNotFound": (warning, "correct the name, or create the model"),
    "ProviderNotFound": (warning, "create the provider, or correct spec.routes"),
}
"""Reasons of objects that are Ready, with their weight and what to do."""
WAIT_ACTIONS = {
    "WaitingForProvider": "look at the provider it names: `gatewayctl providers list` and `test`",
    "WaitingForModel": "`gatewayctl models list`: create the model, or give it a route",
    "WaitingForLedger": "look whether Redis answers",
    "WaitingForStore": "look whether the object store answers",
}


def check_ready(objects: list[Object], word: str, now: datetime) -> Iterator[Finding]:
    """Yield objects that should be Ready and are not, and the lack of any."""
    if not objects and word in FIRST_STEPS:
        text = f"there is no {word} yet: no call can be served"
        yield note("installation", text, FIRST_STEPS[word])
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
        actions = ACTIONS | KEY_ACTIONS if word == "key" else ACTIONS
        action = actions.get(state["reason"] or "", "correct what the message names")
        yield error(f"{word} {name}", text, action.format(name))


def check_health(objects: Iterable[Object], now: datetime, word: str) -> Iterator[Finding]:
    """Yield providers and models whose calls fail, or whose circuits are open."""
    for obj in objects:
        health, name = describe_health(obj), obj["metadata"]["name"]
        if health["health"] not in ("Degraded", "Failing"):
            continue
        if describe_state(obj)["ready"] == "False":
            # `check_ready` has reported it, with the cause
            continue
        make = error if health["health"] == "Failing" else warning
        text = (
            f"{health['health']}: {health['error_percent']} % of its calls"
            f" ({health['calls_per_minute']} a minute) fail, or a circuit is open"
        )
        look = f"`gatewayctl providers test {name}`" if word == "provider" else "see its providers"
        yield make(f"{word} {name}", text, f"{look}; the logs of operator and API have the errors")


def check_providers(objects: Iterable[Object], now: datetime) -> Iterator[Finding]:
    """Yield providers whose calls fail, or that no call has tested yet."""
    found = list(objects)
    yield from check_health(found, now, "provider")
    yield from check_notes(found, now, "provider")


def check_models(objects: Iterable[Object], now: datetime) -> Iterator[Finding]:
    """Yield models whose calls fail, or with a route to a provider that does not exist."""
    found = list(objects)
    yield from check_health(found, now, "model")
    yield from check_notes(found, now, "model")


def check_notes(objects: Iterable[Object], now: datetime, word: str) -> Iterator[Finding]:
    """Yield objects that are Ready with something that an admin should know."""
    for obj in objects:
        state, name = describe_state(obj), obj["metadata"]["name"]
        if state["ready"] == "True" and state["reason"] in NOTES:
            make, action = NOTES[state["reason"]]
            action = action.format(name)
            # some messages name the command too
            text = (state["message"] or "").partition(f"; {action}")[0]
            yield make(f"{word} {name}", text, action)


def check_accounts(objects: Iterable[Object], now: datetime) -> Iterator[Finding]:
    """Yield accounts whose funds are spent or nearly so."""
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
    """Yield active keys that end soon, or whose limits are nearly used up."""
    soon, found = now + timedelta(days=KEY_DAYS), list(objects)
    yield from check_notes(found, now, "key")
    for obj in found:
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


def check_guardrails(objects: Iterable[Object], now: datetime) -> Iterator[Finding]:
    """Yield guardrails whose limits are nearly used up."""
    found = list(objects)
    yield from check_notes(found, now, "guardrail")
    for obj in found:
        guardrail = describe_guardrail(obj)
        name = guardrail["name"]
        action = f"`gatewayctl guardrails limit set {name} …`"
        yield from _check_limit(guardrail, f"guardrail {name}", action)


def check_tasks(objects: Iterable[Object], now: datetime) -> Iterator[Finding]:
    """Yield unsettled tasks that have stopped moving."""
    for obj in objects:
        name, status = obj["metadata"]["name"], obj.get("status") or {}
        age, phase = _age(obj, now), status.get("phase")
        progress = find_condition(obj, "Succeeded")
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
        elif progress.get("reason", "").startswith(WAIT_PREFIX):
            text = f"{progress['reason']}: {progress['message']}"
            yield warning(subject, text, WAIT_ACTIONS.get(progress["reason"], action))
        elif phase in (None, "Pending") and age > UNSEEN_SECONDS:
            yield error(subject, f"no operator has taken it up, {age} s old", action)
        elif phase == "Submitting" and age > SUBMITTING_SECONDS:
            provider = (status.get("upstream") or {}).get("providerName", "none")
            text = f"not accepted by a provider ({provider}) after {age} s"
            yield warning(subject, text, action)


def check_waits(kind: type[Resource], objects: Iterable[Object], _: datetime) -> Iterator[Finding]:
    """Yield open batches or uploads that wait for something."""
    for obj in objects:
        progress = find_condition(obj, "Succeeded")
        reason = progress.get("reason", "")
        if progress.get("status") == "Unknown" and reason.startswith(WAIT_PREFIX):
            name = obj["metadata"]["name"]
            action = WAIT_ACTIONS.get(reason, f"`kubectl describe {kind.short_name} {name}`")
            word = kind.kind_name.removeprefix("Gateway").lower()
            yield warning(f"{word} {name}", f"{reason}: {progress['message']}", action)


def check_definitions(installed: Mapping[str, Object]) -> Iterator[Finding]:
    """Yield differences between the CRDs, by name, and those of this release.

    A field that is missing is lost silently when a process writes it.
    """
    for kind in KINDS:
        name = f"{kind.plural}.{GROUP}"
        found = installed.get(name)
        if found is None:
            yield error(name, "the CRD is not installed", APPLY)
            continue
        conditions = {c["type"]: c for c in (found.get("status") or {}).get("conditions") or ()}
        established = conditions.get("Established", {})
        if established.get("status") != "True":
            text = established.get("message") or "no reason is given"
            yield error(name, f"the CRD is not established: {text}", APPLY)
        wanted, served = set(_list_fields(build_crd(kind))), set(_list_fields(found))
        if missing := sorted(wanted - served):
            text = f"the CRD is older than gatewayctl {RELEASE}: it lacks {_shorten(missing)}"
            yield error(name, text, APPLY)
        elif extra := sorted(served - wanted):
            text = f"the CRD is newer than gatewayctl {RELEASE}: it has {_shorten(extra)}"
            yield note(name, text, "use the gatewayctl of the release that is installed")


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


def _list_fields(crd: Object) -> Iterator[str]:
    for version in crd["spec"]["versions"]:
        if version.get("served"):
            yield from _walk(version["schema"]["openAPIV3Schema"], "")


def _walk(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, child in (schema.get("properties") or {}).items():
        yield f"{path}.{name}"
        yield from _walk(child, f"{path}.{name}")
    if isinstance(items := schema.get("items"), Mapping):
        yield from _walk(items, f"{path}[]")


def _shorten(paths: list[str]) -> str:
    more = f" and {len(paths) - MOST_NAMES} more" if len(paths) > MOST_NAMES else ""
    return ", ".join(paths[:MOST_NAMES]) + more


Rule = Callable[[list[Object], datetime], Iterable[Finding]]
OBJECT_RULES: dict[str, tuple[type[Resource], Rule]] = {
    "provider": (GatewayProvider, check_providers),
    "model": (GatewayModel, check_models),
    "account": (GatewayAccount, check_accounts),
    "key": (GatewayKey, check_keys),
    "guardrail": (GatewayGuardrail, check_guardrails),
    "open task": (GatewayTask, check_tasks),
    "batch": (GatewayBatch, partial(check_waits, GatewayBatch)),
    "open upload": (GatewayUpload, partial(check_waits, GatewayUpload)),
}
"""Problems that objects of a kind may have while they are Ready."""
