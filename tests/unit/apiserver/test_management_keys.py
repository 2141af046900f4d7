"""Keys by REST: made once, shown without their secret, changed, rotated, revoked (contract §9)."""

import asyncio
import re
from typing import Any
from unittest.mock import patch

import pytest

from gateway_apiserver.surfaces.management import keys as key_routes
from gateway_core.accounts.remains import archive_removed
from gateway_core.api.key import parse_key
from gateway_core.kube.errors import KubernetesUnavailable, WriteOutcomeUnknown
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import Gateway
from tests.unit.apiserver.management import Office

FIELDS = {
    *("id", "object", "name", "hint", "class", "status", "created_at", "created_by"),
    *("updated_at", "last_used_at", "expires_at", "disabled", "revoked_at", "limit_cents"),
    *("limit_window", "used_cents", "remaining_cents", "reset_at", "rpm_limit"),
    *("allowed_models", "allowed_providers", "guardrail_ids", "metadata"),
}
WHOLE: dict[str, Any] = {
    "name": "build server",
    "disabled": True,
    "expires_at": "2999-01-02T03:04:05+02:00",
    "limit_cents": 500,
    "limit_window": "weekly",
    "rpm_limit": 30,
    "cache_seconds": 3600,
    "allowed_models": ["sim-*", "sim-*", "other"],
    "allowed_providers": [],
    "metadata": {"team": "build"},
}


@pytest.fixture
async def office(gateway: Gateway) -> Office:
    return Office(gateway)


async def me(office: Office, key: str) -> int:
    return (await office.gateway.get("/api/v1/me", key=key)).status


async def test_new_key_shows_its_secret_and_is_valid_at_once(office: Office) -> None:
    answer = await office.ask("POST", "/keys", {"name": "one"})
    assert answer.status == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json
    assert set(made) == FIELDS | {"secret"}
    assert re.fullmatch(r"key_[a-z2-7]{26}", made["id"])
    parsed = parse_key(made["secret"])
    assert parsed is not None
    assert parsed.key_class == "Standard"
    assert made["hint"] == f"{made['secret'][:7]}…{made['secret'][-4:]}"
    assert (made["object"], made["class"], made["status"]) == ("api_key", "standard", "active")
    assert made["created_at"] == made["updated_at"]
    assert (made["used_cents"], made["remaining_cents"], made["reset_at"]) == (0, None, None)
    assert (made["guardrail_ids"], made["metadata"], made["created_by"]) == ([], {}, None)
    assert await me(office, made["secret"]) == 200


async def test_fields_are_stored_and_shown(office: Office) -> None:
    made = await office.make(**WHOLE)
    shown = await office.show(f"/keys/{made['id']}")
    assert "secret" not in shown
    assert {name: shown[name] for name in WHOLE} == {
        **WHOLE,
        "expires_at": "2999-01-02T01:04:05Z",
        "allowed_models": ["sim-*", "other"],
    }
    assert (shown["status"], shown["remaining_cents"]) == ("disabled", 500)
    obj = office.read(made["id"])
    assert obj["metadata"]["labels"] == {"modelgateway.dev/account": "demo"}
    assert obj["spec"]["limit"] == {"micros": 5_000_000, "window": "weekly"}
    assert made["secret"] not in str(obj)


async def test_lists_that_name_nothing_are_warned_of(office: Office) -> None:
    body = {"name": "k", "allowed_models": ["sim-*", 'no"such'], "allowed_providers": ["sim"]}
    answer = await office.ask("POST", "/keys", body)
    expected = '299 - "allowed_models: no\\"such is not a model of this gateway"'
    assert (answer.status, answer.headers["warning"]) == (201, expected)
    path = f"/keys/{answer.json['id']}"
    assert "warning" not in (await office.ask("GET", path)).headers
    changed = await office.ask("PATCH", path, {"rpm_limit": 5})
    assert changed.headers["warning"] == expected
    changed = await office.ask("PATCH", path, {"allowed_models": None})
    assert (changed.status, "warning" in changed.headers) == (200, False)


async def test_cache_seconds_are_shown_only_where_they_are_set(office: Office) -> None:
    made = await office.make(cache_seconds=60)
    assert (set(made), made["cache_seconds"]) == (FIELDS | {"cache_seconds", "secret"}, 60)
    patched = await office.ask("PATCH", f"/keys/{made['id']}", {"cache_seconds": None})
    assert set(patched.json) == FIELDS
    assert all(set(key) == FIELDS for key in (await office.show("/keys"))["data"])


async def test_null_counts_as_absent_in_create(office: Office) -> None:
    nulls = {name: None for name in WHOLE if name != "name"}
    made = await office.make(**nulls)
    assert made["limit_cents"] is made["expires_at"] is made["allowed_models"] is None
    assert made["disabled"] is False


async def test_creator_is_that_of_the_management_key(gateway: Gateway) -> None:
    gateway.put_user("olga", {"demo": "owner"}, displayName="Olga")
    office = Office(gateway)
    office.key = gateway.put_key("demo", "Management", createdBy="olga")
    made = await office.make()
    assert office.read(made["id"])["spec"]["createdBy"] == "olga"
    assert made["created_by"]["name"] == "Olga"
    assert made["created_by"]["role"] == "owner"
    gateway.put_user("olga", {}, displayName="Olga")
    office.key = gateway.put_key("demo", "Management")
    shown = await office.show(f"/keys/{made['id']}")
    assert shown["created_by"]["role"] is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "   "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"disabled": 1}, "disabled"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2999-01-01T00:00:00"}, "expires_at"),
        ({"limit_cents": 5}, "limit_window"),
        ({"limit_window": "1d"}, "limit_cents"),
        ({"limit_cents": -1, "limit_window": "1d"}, "limit_cents"),
        ({"limit_cents": 5.5, "limit_window": "1d"}, "limit_cents"),
        ({"limit_cents": 2**60, "limit_window": "1d"}, "limit_cents"),
        # what a number beyond a double is read as
        ({"limit_cents": 1e308, "limit_window": "1d"}, "limit_cents"),
        ({"limit_cents": 5, "limit_window": "yearly"}, "limit_window"),
        ({"rpm_limit": 0}, "rpm_limit"),
        ({"allowed_models": "sim"}, "allowed_models"),
        ({"allowed_models": ["a*b"]}, "allowed_models"),
        ({"allowed_models": ["a"] * 257}, "allowed_models"),
        ({"allowed_providers": [None]}, "allowed_providers"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"secret": "sk-mine"}, "secret"),
        ({"class": "management"}, "class"),
        ({"created_by": None}, "created_by"),
    ],
)
async def test_bad_fields_are_named_in_400(
    office: Office, changes: dict[str, Any], field: str
) -> None:
    before = office.count("gatewaykeys")
    answer = await office.ask("POST", "/keys", {"name": "one", **changes})
    assert answer.status == 400, answer.body
    assert set(answer.json) == {"error", "errors"}
    assert list(answer.json["errors"]) == [field]
    assert all(isinstance(text, str) and text for text in answer.json["errors"][field])
    assert office.count("gatewaykeys") == before


async def test_problems_of_each_field_are_reported_with_list_index(office: Office) -> None:
    body = {"allowed_models": ["a", 5], "rpm_limit": "x", "nonsense": 1}
    errors = (await office.ask("POST", "/keys", body)).json["errors"]
    assert set(errors) == {"name", "allowed_models", "rpm_limit", "nonsense"}
    assert errors["name"] == ["is required"]
    assert errors["allowed_models"] == ["[1] must be a string"]
    assert errors["nonsense"] == ["is not a known field"]


async def test_declared_key_can_be_managed(office: Office) -> None:
    office.gateway.put_key("demo")
    spec = {"accountName": "demo", "class": "Standard", "displayName": "d", "secretName": "s"}
    office.gateway.kube.put("gatewaykeys", {"metadata": {"name": "key-ci-9"}, "spec": spec})
    shown = await office.show("/keys/key_ci-9")
    assert (shown["name"], shown["hint"]) == ("d", "")
    answer = await office.ask("POST", "/keys/key_ci-9/rotate")
    assert answer.status == 409
    assert "spec.rotations" in answer.json["error"]
    assert (await office.ask("DELETE", "/keys/key_ci-9")).status == 200


async def test_management_keys_are_not_shown(office: Office) -> None:
    own = "key_" + office.key[3:11]
    assert (await office.ask("GET", f"/keys/{own}")).status == 404
    assert (await office.ask("DELETE", f"/keys/{own}")).status == 404
    listed = (await office.show("/keys"))["data"]
    assert own not in {key["id"] for key in listed}


async def test_merge_patch_sets_clears_and_keeps_fields(office: Office) -> None:
    made = await office.make(**WHOLE)
    path = f"/keys/{made['id']}"
    patch = {"name": "two", "expires_at": None, "rpm_limit": None, "allowed_models": []}
    patched = await office.ask("PATCH", path, {**patch, "metadata": {"team": None, "x": "y"}})
    assert patched.status == 200, patched.body
    shown = await office.show(path)
    assert shown == patched.json
    assert (shown["name"], shown["expires_at"], shown["rpm_limit"]) == ("two", None, None)
    assert (shown["allowed_models"], shown["allowed_providers"]) == ([], [])
    assert shown["metadata"] == {"x": "y"}
    assert (shown["limit_cents"], shown["disabled"]) == (500, True)
    cleared = await office.ask("PATCH", path, {"disabled": None, "metadata": None})
    assert (cleared.json["disabled"], cleared.json["metadata"]) == (False, {})


@pytest.mark.parametrize(
    ("patch", "limit"),
    [
        ({"limit_cents": 700}, (700, "weekly")),
        ({"limit_window": "daily"}, (500, "daily")),
        ({"limit_cents": None}, (None, None)),
        ({"limit_window": None}, (None, None)),
        ({"limit_cents": 1, "limit_window": "1h"}, (1, "1h")),
        ({}, (500, "weekly")),
    ],
)
async def test_patch_changes_amount_and_window_together(
    office: Office, patch: dict[str, Any], limit: Any
) -> None:
    made = await office.make(**WHOLE)
    answer = await office.ask("PATCH", f"/keys/{made['id']}", patch)
    assert (answer.json["limit_cents"], answer.json["limit_window"]) == limit


@pytest.mark.parametrize(
    "patch",
    [{"limit_cents": 5}, {"limit_window": "1d"}, {"name": None}, {"id": "x"}, {"secret": "x"}],
)
async def test_invalid_patch_is_400(office: Office, patch: Any) -> None:
    made = await office.make()
    answer = await office.ask("PATCH", f"/keys/{made['id']}", patch)
    assert answer.status == 400
    assert "errors" in answer.json


async def test_entries_of_too_large_metadata_are_not_validated(office: Office) -> None:
    metadata = {str(n): n for n in range(30_000)}
    answer = await office.ask("POST", "/keys", {"name": "x", "metadata": metadata})
    assert answer.json["errors"] == {"metadata": ["must have at most 16 items"]}


async def test_metadata_is_counted_after_merge(office: Office) -> None:
    made = await office.make(metadata={str(n): "" for n in range(16)})
    path = f"/keys/{made['id']}"
    assert (await office.ask("PATCH", path, {"metadata": {"x": ""}})).status == 400
    swapped = await office.ask("PATCH", path, {"metadata": {"x": "", "0": None}})
    assert len(swapped.json["metadata"]) == 16


async def test_disabled_and_expired_keys_are_401_and_show_their_status(office: Office) -> None:
    made = await office.make()
    path = f"/keys/{made['id']}"
    await office.ask("PATCH", path, {"disabled": True})
    assert await me(office, made["secret"]) == 401
    await office.ask("PATCH", path, {"disabled": False, "expires_at": "2020-01-01T00:00:00Z"})
    assert (await office.show(path))["status"] == "expired"
    assert await me(office, made["secret"]) == 401
    await office.ask("PATCH", path, {"expires_at": None})
    assert await me(office, made["secret"]) == 200


async def test_concurrent_changes_of_one_key_overwrite_nothing(office: Office) -> None:
    made = await office.make()
    path = f"/keys/{made['id']}"
    patches = [{"name": "new"}, {"rpm_limit": 7}, {"metadata": {"a": "1"}}, {"disabled": True}]
    answers = await asyncio.gather(*(office.ask("PATCH", path, patch) for patch in patches))
    assert {answer.status for answer in answers} == {200}
    shown = await office.show(path)
    assert (shown["name"], shown["rpm_limit"], shown["disabled"]) == ("new", 7, True)
    assert shown["metadata"] == {"a": "1"}


async def test_revocation_is_final_and_idempotent(office: Office) -> None:
    made = await office.make()
    path = f"/keys/{made['id']}"
    first, second = [await office.ask("DELETE", path) for _ in range(2)]
    assert (first.status, first.body) == (second.status, second.body)
    assert first.json == {"id": made["id"], "object": "api_key", "deleted": True}
    assert await me(office, made["secret"]) == 401
    shown = await office.show(path)
    assert shown["status"] == "revoked"
    assert shown["revoked_at"] is not None
    for method, rest in (("PATCH", ""), ("POST", "/rotate")):
        answer = await office.ask(method, path + rest, {})
        assert answer.status == 409
        assert answer.headers["x-should-retry"] == "false"


async def test_rotation_keeps_id_and_ends_old_secret(office: Office) -> None:
    made = await office.make(**{**WHOLE, "disabled": False})
    answer = await office.ask("POST", f"/keys/{made['id']}/rotate")
    rotated = answer.json
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    assert set(rotated) == FIELDS | {"cache_seconds", "secret"}
    assert rotated["secret"] != made["secret"]
    kept = FIELDS - {"hint", "updated_at", "reset_at"}
    assert {name: rotated[name] for name in kept} == {name: made[name] for name in kept}
    assert rotated["hint"].endswith(rotated["secret"][-4:])
    assert await me(office, made["secret"]) == 401
    assert await me(office, rotated["secret"]) == 200


async def test_overlap_keeps_at_most_two_secrets_valid(office: Office) -> None:
    made = await office.make()
    path = f"/keys/{made['id']}"
    first = (await office.ask("POST", path + "/rotate", {"overlap_seconds": 600})).json
    assert [await me(office, key["secret"]) for key in (made, first)] == [200, 200]
    assert (await office.show(path))["hint"] == first["hint"]
    second = (await office.ask("POST", path + "/rotate", {"overlap_seconds": 600})).json
    opened = [await me(office, key["secret"]) for key in (made, first, second)]
    assert opened == [401, 200, 200]
    last = (await office.ask("POST", path + "/rotate", {"overlap_seconds": 0})).json
    opened = [await me(office, key["secret"]) for key in (first, second, last)]
    assert opened == [401, 401, 200]


@pytest.mark.parametrize("seconds", [-1, 604_801, "5", 1.5, True])
async def test_overlap_is_at_most_a_week(office: Office, seconds: Any) -> None:
    made = await office.make()
    answer = await office.ask("POST", f"/keys/{made['id']}/rotate", {"overlap_seconds": seconds})
    assert list(answer.json["errors"]) == ["overlap_seconds"]


async def test_repeated_create_gets_same_response_without_secret(office: Office) -> None:
    first = await office.ask("POST", "/keys", WHOLE, idempotency_key="a")
    path = f"/keys/{first.json['id']}"
    await office.ask("PATCH", path, {"name": "later", "limit_cents": None, "disabled": False})
    await office.ask("POST", path + "/rotate")
    again = await office.ask("POST", "/keys", WHOLE, idempotency_key=" a ")
    assert again.status == 201
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert again.json == {**first.json, "secret": None}
    assert (await office.show(path))["name"] == "later"


async def test_idempotency_key_with_other_input_is_409_within_account(
    office: Office,
) -> None:
    first = await office.ask("POST", "/keys", {"name": "x"}, idempotency_key="a")
    other = await office.ask("POST", "/keys", {"name": "y"}, idempotency_key="a")
    assert other.status == 409
    assert other.json["error"] == "Idempotency-Key was already used with different input"
    foreign = await office.ask(
        "POST", "/keys", {"name": "y"}, idempotency_key="a", key=office.other_key
    )
    assert foreign.status == 201
    assert foreign.json["id"] != first.json["id"]


async def test_refused_create_does_not_bind_idempotency_key(office: Office) -> None:
    assert (await office.ask("POST", "/keys", {}, idempotency_key="a")).status == 400
    assert (await office.ask("POST", "/keys", {"name": "x"}, idempotency_key="a")).status == 201


async def test_concurrent_creates_with_one_idempotency_key_make_one(office: Office) -> None:
    before = office.count("gatewaykeys")
    calls = [office.ask("POST", "/keys", {"name": "x"}, idempotency_key="a") for _ in range(20)]
    answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert sum(answer.json["secret"] is not None for answer in answers) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 19
    assert office.count("gatewaykeys") == before + 1


async def test_repeated_rotation_is_applied_once(office: Office) -> None:
    made = await office.make()
    path = f"/keys/{made['id']}/rotate"
    calls = [office.ask("POST", path, {}, idempotency_key="r") for _ in range(8)]
    answers = await asyncio.gather(*calls)
    secrets = [answer.json["secret"] for answer in answers if answer.json["secret"]]
    assert len(secrets) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 7
    assert await me(office, secrets[0]) == 200
    other = await office.ask("POST", path, {"overlap_seconds": 5}, idempotency_key="r")
    assert other.status == 409
    another = f"/keys/{(await office.make())['id']}/rotate"
    assert (await office.ask("POST", another, {}, idempotency_key="r")).status == 409


@pytest.mark.parametrize("applied", [True, False])
async def test_create_and_rotation_with_lost_response_are_applied_once(
    office: Office, applied: bool
) -> None:
    fault = Fault(WriteOutcomeUnknown("lost"), applied=applied)
    office.gateway.kube.order_faults("create", fault)
    made = await office.make()
    assert await me(office, made["secret"]) == 200
    listed = (await office.show("/keys", "name_contains=one"))["data"]
    assert [key["id"] for key in listed] == [made["id"]]
    office.gateway.kube.order_faults("patch", fault)
    body = {"overlap_seconds": 600}
    rotated = (await office.ask("POST", f"/keys/{made['id']}/rotate", body)).json
    assert [await me(office, key["secret"]) for key in (made, rotated)] == [200, 200]


@in_virtual_time
async def test_hanging_kubernetes_api_is_503_after_ten_seconds() -> None:
    office = Office(Gateway())
    made = await office.make()
    path = f"/keys/{made['id']}"
    hanging = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> Any:
        await hanging.wait()

    kube = office.gateway.kube
    began = asyncio.get_running_loop().time()
    with patch.object(kube, "patch", hang), patch.object(kube, "create", hang):
        assert (await office.ask("PATCH", path, {"name": "x"})).status == 504
        assert (await office.ask("POST", "/keys", {"name": "x"})).status == 504
    with patch.object(kube, "get", hang):
        assert (await office.ask("GET", path)).status == 503
    assert asyncio.get_running_loop().time() - began < 31


async def test_kubernetes_outage_is_503(office: Office) -> None:
    made = await office.make()
    office.gateway.kube.away = True
    for method, path, body in (
        ("POST", "/keys", {"name": "x"}),
        ("GET", "/keys", None),
        ("PATCH", f"/keys/{made['id']}", {"name": "x"}),
        ("DELETE", f"/keys/{made['id']}", None),
    ):
        answer = await office.ask(method, path, body)
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
    office.gateway.kube.away = False
    office.gateway.kube.order_faults("patch", *[Fault(KubernetesUnavailable("busy"))] * 20)
    answer = await office.ask("PATCH", f"/keys/{made['id']}", {"name": "x"})
    assert answer.status == 503


@pytest.mark.parametrize(
    "explicit", [{"disabled": False}, {"metadata": {}}, {"disabled": None, "rpm_limit": None}]
)
async def test_explicit_default_equals_omitted_field_in_replay(
    office: Office, explicit: dict[str, Any]
) -> None:
    first = await office.ask("POST", "/keys", {"name": "x"}, idempotency_key="a")
    again = await office.ask("POST", "/keys", {"name": "x", **explicit}, idempotency_key="a")
    assert (again.status, again.json["id"]) == (201, first.json["id"])
    other = await office.ask("POST", "/keys", {"name": "x", "disabled": True}, idempotency_key="a")
    assert other.status == 409


async def test_number_of_keys_of_account_is_bounded() -> None:
    office = Office(Gateway(keys_per_account=2))
    await office.ask("POST", "/keys", {"name": "x"}, idempotency_key="a")
    # the account has a key that an admin made
    refused = await office.ask("POST", "/keys", {"name": "y"})
    assert (refused.status, office.count("gatewaykeys")) == (409, 3)
    again = await office.ask("POST", "/keys", {"name": "x"}, idempotency_key="a")
    assert again.status == 201
    await office.make(key=office.other_key)


async def test_revoking_faster_than_removal_is_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Revoked keys are bounded too, also while no operator removes any (I11)."""
    monkeypatch.setattr(key_routes, "MOST_REVOKED", 2)
    monkeypatch.setattr(key_routes, "MOST_WAITING", 1)
    office = Office(Gateway())
    for _ in range(3):
        made = await office.make()
        await office.ask("DELETE", f"/keys/{made['id']}")
    refused = await office.ask("POST", "/keys", {"name": "z"})
    assert (refused.status, refused.headers["retry-after"]) == (503, "60")
    office.gateway.kube.remove("gatewaykeys", made["id"].replace("_", "-", 1))
    await office.make()


async def test_removed_key_keeps_its_cursor_and_idempotency_key() -> None:
    office = Office(Gateway())
    made = [
        await office.ask("POST", "/keys", {"name": f"n{n}"}, idempotency_key=f"k{n}")
        for n in range(3)
    ]
    ids = [answer.json["id"] for answer in made]
    obj = office.read(ids[1])
    await office.ask("DELETE", f"/keys/{ids[1]}")
    await archive_removed(office.gateway.store, "gatewaykeys", "demo", obj, [])
    office.gateway.kube.remove("gatewaykeys", obj["metadata"]["name"])
    assert (await office.ask("GET", f"/keys/{ids[1]}")).status == 404
    page = await office.show("/keys", f"after={ids[1]}&order=asc")
    assert ids[2] in [key["id"] for key in page["data"]]
    assert ids[0] not in [key["id"] for key in page["data"]]
    again = await office.ask("POST", "/keys", {"name": "n1"}, idempotency_key="k1")
    assert (again.status, again.headers["idempotent-replayed"]) == (201, "true")
    assert again.json == {**made[1].json, "secret": None}
    other = await office.ask("POST", "/keys", {"name": "other"}, idempotency_key="k1")
    assert other.status == 409
    assert (await office.ask("GET", f"/keys/{ids[1]}")).status == 404
    foreign = await office.ask("GET", "/keys", key=office.other_key, query=f"after={ids[1]}")
    assert foreign.status == 404
