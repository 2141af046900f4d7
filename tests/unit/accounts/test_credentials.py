"""Credentials (contract §0.10), also while the API server cannot be read."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from gateway_core.accounts.authentication import Authenticator
from gateway_core.api.errors import Unauthenticated
from gateway_core.api.key import KeyClass, digest, mint_key
from gateway_core.kube.read_through import ReadThrough
from tests.unit.apiserver.gateway import PEPPERS, Gateway, call

ME = "/api/v1/me"
PAST = "2020-01-01T00:00:00Z"
FUTURE = "2999-01-01T00:00:00Z"


def name_key(plaintext: str) -> str:
    return "key-" + plaintext[3:11]


def other_token(plaintext: str) -> dict[str, str]:
    return {"id": plaintext[3:11], "digest": "1" * 64, "hint": "x"}


def open_tables(gateway: Gateway) -> tuple[ReadThrough[Any], ...]:
    tables = {"keys": gateway.keys, "accounts": gateway.accounts, "users": gateway.users}
    return tuple(
        ReadThrough(table, gateway.kube, f"gateway{name}") for name, table in tables.items()
    )


async def ask(gateway: Gateway, *values: str) -> Any:
    return await call(
        gateway.app, "GET", ME, headers=[("Authorization", value) for value in values]
    )


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "bEaReR"])
async def test_scheme_is_read_in_any_case(gateway: Gateway, scheme: str) -> None:
    assert (await ask(gateway, f"{scheme} {gateway.key}")).status == 200


@pytest.mark.parametrize(
    "templates",
    [
        (),
        ("",),
        ("Bearer",),
        ("Bearer ",),
        ("Bearer  {key}",),
        ("Bearer\t{key}",),
        ("Bearer {key} ",),
        ("Bearer {key}x",),
        ("Bearer {swapped}",),
        ("Bearer {key}, Bearer {key}",),
        ("Bearer {key}", "Bearer {key}"),
        ("Basic {key}",),
        ("{key}",),
        ("Bearer{key}",),
        ('Bearer "{key}"',),
        ("Bearer sk-aaaaaaaa_" + "0" * 38,),
        ("Bearer {unknown}",),
        ("Bearer é",),
    ],
)
async def test_malformed_credential_is_refused(
    gateway: Gateway, templates: tuple[str, ...]
) -> None:
    key, unknown = gateway.key, mint_key().plaintext
    values = [each.format(key=key, swapped=key.swapcase(), unknown=unknown) for each in templates]
    answer = await ask(gateway, *values)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert set(answer.json) == {"error"}


@pytest.mark.parametrize("template", ["{key}", "Basic {key}", "Bearer{key}"])
async def test_credential_without_bearer_is_told_the_form(gateway: Gateway, template: str) -> None:
    answer = await ask(gateway, template.format(key=gateway.key))
    assert answer.json == {"error": "Authorization must be: Bearer <key>."}


async def test_known_id_with_another_secret_is_refused(gateway: Gateway) -> None:
    forged = mint_key()
    gateway.put_key("demo", token={"id": forged.id})
    assert (await ask(gateway, f"Bearer {forged.plaintext}")).status == 401


@pytest.mark.parametrize("spec", [{"disabled": True}, {"revoked": True}, {"expirationTime": PAST}])
async def test_ended_key_is_refused(gateway: Gateway, spec: dict[str, Any]) -> None:
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200
    gateway.change_key(gateway.key, **spec)
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401


async def test_token_expires_on_its_own(gateway: Gateway) -> None:
    old = gateway.put_key("demo", token={"expirationTime": PAST})
    new = gateway.put_key("demo", token={"expirationTime": FUTURE}, expirationTime=FUTURE)
    assert (await ask(gateway, f"Bearer {old}")).status == 401
    assert (await ask(gateway, f"Bearer {new}")).status == 200


@pytest.mark.parametrize("is_token", [True, False])
async def test_key_that_has_just_opened_expires_in_time(gateway: Gateway, is_token: bool) -> None:
    expires: dict[str, Any] = {"expirationTime": FUTURE}
    key = gateway.put_key("demo", **({"token": expires} if is_token else expires))
    headers = [(b"authorization", f"Bearer {key}".encode())]
    now = time.time()
    authenticator = Authenticator(*open_tables(gateway), PEPPERS, clock=lambda: now)

    found = await authenticator.authenticate(headers)
    assert await authenticator.authenticate(headers) is found
    now = datetime.fromisoformat(FUTURE).timestamp()
    with pytest.raises(Unauthenticated):
        await authenticator.authenticate(headers)


async def test_suspension_during_a_read_through_ends_the_next_call(gateway: Gateway) -> None:
    gateway.put_user("ann", {"demo": "owner"})
    key = gateway.put_key("demo", createdBy="ann")
    headers = [(b"authorization", f"Bearer {key}".encode())]
    tables = gateway.keys, gateway.accounts, gateway.users

    class Users(ReadThrough[Any]):
        async def read(self, name: str) -> Any:
            # the watches come back while the user is read, with what they have missed
            gateway.put_account("demo", suspended=True)
            for table in tables:
                table.staleness = 0.0
            return await super().read(name)

    keys, accounts, _ = open_tables(gateway)
    users = Users(gateway.users, gateway.kube, "gatewayusers")
    authenticator = Authenticator(keys, accounts, users, PEPPERS)
    for table in tables:
        table.staleness = 6.0
    await authenticator.authenticate(headers)
    with pytest.raises(Unauthenticated):
        await authenticator.authenticate(headers)


async def test_both_tokens_of_a_rotated_key_are_accepted(gateway: Gateway) -> None:
    keys = [mint_key(), mint_key()]
    tokens = [{"id": k.id, "digest": digest(k.plaintext, b"p" * 32), "hint": "x"} for k in keys]
    gateway.put_key("demo", tokens=tokens)
    for key in keys:
        assert (await ask(gateway, f"Bearer {key.plaintext}")).status == 200


async def test_older_pepper_is_accepted_and_an_unknown_one_is_not(gateway: Gateway) -> None:
    assert (await ask(gateway, f"Bearer {gateway.put_key('demo', pepper=2)}")).status == 200
    lost = gateway.put_key("demo", token={"pepperVersion": 9})
    assert (await ask(gateway, f"Bearer {lost}")).status == 401


async def test_second_key_with_the_same_token_id_does_not_hide_the_first(gateway: Gateway) -> None:
    token = {"id": gateway.key[3:11], "digest": "0" * 64}
    gateway.put_key("guest", token=token)
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200


async def test_deleted_key_is_refused(gateway: Gateway) -> None:
    gateway.kube.remove("gatewaykeys", name_key(gateway.key))
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401


async def test_key_of_a_suspended_or_missing_account_is_refused(gateway: Gateway) -> None:
    gateway.put_account("demo", suspended=True)
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401
    assert (await ask(gateway, f"Bearer {gateway.put_key('nobody')}")).status == 401


async def test_management_key_makes_no_calls(gateway: Gateway) -> None:
    manager = gateway.put_key("demo", "Management")
    for answer in (await ask(gateway, f"Bearer {manager}"), await gateway.create(key=manager)):
        assert answer.status == 403
        assert set(answer.json) == {"error"}
    gateway.change_key(manager, revoked=True)
    assert (await ask(gateway, f"Bearer {manager}")).status == 401


async def test_key_in_another_header_or_the_query_is_not_read(gateway: Gateway) -> None:
    headers = [("X-Goog-Api-Key", gateway.key)]
    answer = await call(gateway.app, "GET", ME, headers=headers, query=f"key={gateway.key}")
    assert answer.status == 401


class TestRoles:
    """A key acts with the present role of who made it (contract §9.2)."""

    async def test_viewer_may_read_and_is_refused_before_anything_is_counted(
        self, gateway: Gateway
    ) -> None:
        gateway.put_user("mia", {"demo": "viewer", "guest": "owner"})
        key = gateway.put_key("demo", createdBy="mia")
        assert (await ask(gateway, f"Bearer {key}")).status == 200
        answer = await gateway.create(b"{", key=key)
        assert answer.status == 403
        assert "viewer" in answer.json["error"]
        assert not any(name.startswith("x-ratelimit") for name in answer.headers)
        assert (await gateway.create()).headers["x-ratelimit-remaining-rpm"] == "299"

    @pytest.mark.parametrize("key_class", ["Standard", "Management"])
    @pytest.mark.parametrize(
        "end",
        [
            lambda gateway: gateway.put_user("mia", {}),
            lambda gateway: gateway.put_user("mia", {"guest": "owner"}),
            lambda gateway: gateway.put_user("mia", {"demo": "owner"}, suspended=True),
            lambda gateway: gateway.kube.remove("gatewayusers", "mia"),
        ],
        ids=["removed", "of another account", "suspended", "deleted"],
    )
    async def test_key_ends_with_the_membership_of_its_creator(
        self, gateway: Gateway, key_class: KeyClass, end: Callable[[Gateway], None]
    ) -> None:
        gateway.put_user("mia", {"demo": "owner"})
        key = gateway.put_key("demo", key_class, createdBy="mia")
        before = await ask(gateway, f"Bearer {key}")
        assert before.status == (200 if key_class == "Standard" else 403)
        end(gateway)
        assert (await ask(gateway, f"Bearer {key}")).status == 401

    async def test_key_of_an_unknown_creator_is_refused(self, gateway: Gateway) -> None:
        key = gateway.put_key("demo", createdBy="nobody")
        assert (await ask(gateway, f"Bearer {key}")).status == 401
        gateway.put_user("nobody", {"demo": "member"})
        assert (await ask(gateway, f"Bearer {key}")).status == 200


async def test_tokens_in_the_status_are_accepted(gateway: Gateway) -> None:
    minted = mint_key()
    token = {"id": minted.id, "digest": digest(minted.plaintext, b"p" * 32), "hint": "x"}
    spec = {"accountName": "demo", "displayName": "declared", "secretName": "a-key"}
    obj = {"metadata": {"name": "key-declared"}, "spec": spec}
    gateway.kube.put("gatewaykeys", obj)
    assert (await ask(gateway, f"Bearer {minted.plaintext}")).status == 401
    gateway.kube.put("gatewaykeys", {**obj, "status": {"tokens": [token]}})
    assert (await ask(gateway, f"Bearer {minted.plaintext}")).status == 200
    assert (await gateway.create(key=minted.plaintext)).status == 202
    outgoing = {**token, "expirationTime": PAST}
    gateway.kube.put("gatewaykeys", {**obj, "status": {"tokens": [outgoing]}})
    assert (await ask(gateway, f"Bearer {minted.plaintext}")).status == 401


@pytest.mark.parametrize("known", [False, True])
async def test_unknown_and_known_ids_cost_one_digest_each(
    gateway: Gateway, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One digest each: what it takes does not tell whether an id is somebody's (§0.5)."""
    made: list[str] = []

    def count(plaintext: str, pepper: bytes) -> str:
        made.append(plaintext)
        return digest(plaintext, pepper)

    unknown = mint_key()
    if known:
        gateway.put_key("demo", token={"id": unknown.id})
    monkeypatch.setattr("gateway_core.accounts.authentication.digest", count)
    assert (await ask(gateway, f"Bearer {unknown.plaintext}")).status == 401
    assert made == [unknown.plaintext]


@pytest.mark.parametrize("table", ["keys", "accounts", "users"])
async def test_calls_are_unavailable_before_the_first_list(gateway: Gateway, table: str) -> None:
    getattr(gateway, table).synced = False
    answer = await ask(gateway, f"Bearer {gateway.key}")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert (await ask(gateway, "Bearer nonsense")).status == 401


class TestSilentWatch:
    """A key is read by name while its watch says nothing for more than 5 s."""

    @pytest.mark.parametrize(
        ("table", "change", "status"),
        [
            ("keys", lambda gateway, key: gateway.change_key(key, revoked=True), 401),
            ("keys", lambda gateway, key: gateway.change_key(key, tokens=[other_token(key)]), 401),
            ("keys", lambda gateway, key: gateway.kube.remove("gatewaykeys", name_key(key)), 401),
            ("accounts", lambda gateway, _: gateway.put_account("demo", suspended=True), 401),
            ("users", lambda gateway, _: gateway.put_user("mia", {"demo": "viewer"}), 403),
            ("users", lambda gateway, _: gateway.put_user("mia", {}), 401),
        ],
        ids=["revoked", "rotated", "deleted", "suspended", "viewer", "no member"],
    )
    async def test_change_is_seen_without_the_watch(
        self,
        gateway: Gateway,
        table: str,
        change: Callable[[Gateway, str], None],
        status: int,
    ) -> None:
        gateway.put_user("mia", {"demo": "member"})
        key = gateway.put_key("demo", createdBy="mia")
        assert (await gateway.create()).status == 202
        assert ("get", f"gateway{table}") not in gateway.kube.calls
        silent = getattr(gateway, table)
        silent.cut, silent.staleness = True, 5.1
        change(gateway, key)
        assert (await gateway.create(key=key)).status == status

    async def test_key_of_a_new_creator_is_checked_again(self, gateway: Gateway) -> None:
        gateway.put_user("mia", {"demo": "owner"})
        gateway.put_user("vic", {"demo": "viewer"})
        key = gateway.put_key("demo", createdBy="mia")
        gateway.keys.cut, gateway.keys.staleness = True, 5.1
        gateway.change_key(key, createdBy="vic")
        assert (await gateway.create(key=key)).status == 503
        assert (await gateway.create(key=key)).status == 403

    async def test_keys_without_a_creator_need_no_users(self, gateway: Gateway) -> None:
        gateway.kube.away = True
        gateway.users.staleness = 301.0
        assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200

    async def test_key_is_read_once_a_second(self, gateway: Gateway) -> None:
        gateway.keys.staleness = 5.1
        for _ in range(5):
            assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200
        assert gateway.kube.calls.count(("get", "gatewaykeys")) == 1

    async def test_cached_keys_serve_for_five_minutes(self, gateway: Gateway) -> None:
        gateway.kube.away = True
        gateway.keys.staleness = gateway.accounts.staleness = 299.0
        assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200
        assert (await ask(gateway, f"Bearer {mint_key().plaintext}")).status == 401
        gateway.keys.staleness = 301.0
        answer = await ask(gateway, f"Bearer {gateway.key}")
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) <= 120
        assert (await ask(gateway, f"Bearer {mint_key().plaintext}")).status == 503
