"""What objects are shown as, whoever wrote them and however (contract §0.3, §9)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_apiserver.surfaces.management.responses import BudgetView, Key, render_key
from gateway_core.api.ids import SEQUENCE_ANNOTATION
from gateway_core.kube.errors import VersionExpired
from gateway_core.kube.lists import find_position
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import Gateway
from tests.unit.apiserver.management import Office

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MADE = "2026-11-21T10:00:00Z"


def show(
    spec: dict[str, Any], meta: dict[str, Any] | None = None, status: dict[str, Any] | None = None
) -> Key:
    obj = {
        "metadata": {"name": "key-a", "creationTimestamp": MADE, **(meta or {})},
        "spec": {"accountName": "demo", "displayName": "d", **spec},
        "status": status or {},
    }
    budget = BudgetView(None, None, None)
    return render_key(obj, now=NOW, creator=None, guardrails=(), budget=budget)


def test_updated_at_ignores_status_writes() -> None:
    fields = [
        {"manager": "api", "time": MADE},
        {"manager": "kubectl", "time": "2026-11-21T11:00:00Z"},
        {"manager": "operator", "time": "2026-11-21T11:30:00Z", "subresource": "status"},
        {"manager": "old"},
    ]
    assert show({}, {"managedFields": fields}).updated_at == "2026-11-21T11:00:00Z"
    assert show({}).updated_at == MADE


def test_revocation_by_kubectl_has_time_of_condition() -> None:
    condition = {
        "type": "Ready",
        "reason": "Revoked",
        "lastTransitionTime": "2026-11-21T11:00:00Z",
    }
    spec = {"revoked": True}
    assert show(spec, status={"conditions": [condition]}).revoked_at == "2026-11-21T11:00:00Z"
    other = {**condition, "reason": "Disabled"}
    assert show(spec, status={"conditions": [other]}).revoked_at is None
    assert show({}, status={"conditions": [condition]}).revoked_at is None


def test_times_are_shown_in_utc_with_whole_seconds() -> None:
    shown = show({"expirationTime": "2026-11-21T14:00:00.75+02:30"})
    assert (shown.expires_at, shown.status) == ("2026-11-21T11:30:00Z", "expired")


def test_hint_is_that_of_the_lasting_token() -> None:
    old = {"hint": "old", "expirationTime": "2999-01-01T00:00:00Z"}
    assert show({"tokens": [old, {"hint": "new"}]}).hint == "new"
    assert show({"tokens": [old]}).hint == "old"
    assert show({}, status={"tokens": [{"hint": "operator's"}]}).hint == "operator's"


@pytest.mark.parametrize("text", ["", "x", "-1", "9" * 5000, "\u0663"])
def test_malformed_sequence_annotation_is_ignored(text: str) -> None:
    meta = {"name": "key-a", "creationTimestamp": MADE, "annotations": {SEQUENCE_ANNOTATION: text}}
    assert find_position({"metadata": meta}) == (MADE, 0, "key-a")


async def test_malformed_replay_notes_are_ignored(gateway: Gateway) -> None:
    office = Office(gateway)
    made = await office.make()
    for text in ("nonsense", "{}", "[1]", '[["a"]]'):
        obj = office.read(made["id"])
        notes = {**obj["metadata"]["annotations"], "modelgateway.dev/replays": text}
        gateway.kube.put(
            "gatewaykeys", {**obj, "metadata": {**obj["metadata"], "annotations": notes}}
        )
        path = f"/keys/{made['id']}/rotate"
        answer = await office.ask("POST", path, {}, idempotency_key=f"a{len(text)}")
        assert (answer.status, answer.json["secret"] is None) == (200, False)


async def test_list_is_restarted_when_its_version_expires(gateway: Gateway) -> None:
    office = Office(gateway)
    made = await office.make()
    gateway.kube.order_faults("list_page", Fault(VersionExpired("compacted")))
    shown = (await office.show("/keys"))["data"]
    assert made["id"] in {key["id"] for key in shown}
    gateway.kube.order_faults("list_page", *[Fault(VersionExpired("compacted"))] * 3)
    assert (await office.ask("GET", "/keys")).status == 503
