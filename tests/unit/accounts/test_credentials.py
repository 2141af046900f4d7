"""Who is let in (contract §0.10), and what holds while keys cannot be checked."""

import time
from datetime import datetime
from typing import Any

import pytest

from gateway_apiserver.settings import ApiSettings
from gateway_core.accounts.authentication import Authenticator
from gateway_core.api.errors import Unauthenticated
from gateway_core.api.key import KeyClass, digest, mint_key
from gateway_core.kube.read_through import ReadThrough
from tests.unit.apiserver.gateway import PATH, PEPPERS, Gateway, call

ME = "/api/v1/me"
PAST = "2020-01-01T00:00:00Z"
FUTURE = "2999-01-01T00:00:00Z"


async def ask(gateway: Gateway, *values: str) -> Any:
    return await call(
        gateway.app, "GET", ME, headers=[("Authorization", value) for value in values]
    )


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
async def test_the_scheme_is_read_in_any_case(gateway: Gateway, scheme: str) -> None:
    assert (await ask(gateway, f"{scheme} {gateway.key}")).status == 200


@pytest.mark.parametrize(
    "template",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer  {key}",
        "Bearer\t{key}",
        "Bearer {key} ",
        "Bearer {key}x",
        "Bearer {key}, Bearer {key}",
        "Basic {key}",
        "{key}",
        "Bearer{key}",
        'Bearer "{key}"',
        "Bearer sk-aaaaaaaa_" + "0" * 38,
        "Bearer é",
    ],
)
async def test_malformed_credentials(gateway: Gateway, template: str) -> None:
    answer = await ask(gateway, template.format(key=gateway.key))
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert set(answer.json) == {"error"}


async def test_key_in_swapped_case_is_refused(gateway: Gateway) -> None:
    assert (await ask(gateway, f"Bearer {gateway.key.swapcase()}")).status == 401


async def test_no_credential(gateway: Gateway) -> None:
    answer = await ask(gateway)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_two_headers_even_if_equal(gateway: Gateway) -> None:
    assert (await ask(gateway, f"Bearer {gateway.key}", f"Bearer {gateway.key}")).status == 401


async def test_unknown_key(gateway: Gateway) -> None:
    assert (await ask(gateway, f"Bearer {mint_key().plaintext}")).status == 401


async def test_the_id_of_a_key_with_another_secret(gateway: Gateway) -> None:
    forged = mint_key()
    gateway.put_key("demo", token={"id": forged.id})
    assert (await ask(gateway, f"Bearer {forged.plaintext}")).status == 401


@pytest.mark.parametrize("spec", [{"disabled": True}, {"revoked": True}, {"expirationTime": PAST}])
async def test_keys_that_no_longer_open(gateway: Gateway, spec: dict[str, Any]) -> None:
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200
    gateway.change_key(gateway.key, **spec)
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401


async def test_a_token_expires_by_itself(gateway: Gateway) -> None:
    old = gateway.put_key("demo", token={"expirationTime": PAST})
    new = gateway.put_key("demo", token={"expirationTime": FUTURE}, expirationTime=FUTURE)
    assert (await ask(gateway, f"Bearer {old}")).status == 401
    assert (await ask(gateway, f"Bearer {new}")).status == 200


@pytest.mark.parametrize("is_token", [True, False])
async def test_key_that_has_just_opened_expires_in_time(gateway: Gateway, is_token: bool) -> None:
    expires = {"expirationTime": FUTURE}
    fields: dict[str, Any] = {"token": expires} if is_token else expires
    headers = [(b"authorization", f"Bearer {gateway.put_key('demo', **fields)}".encode())]
    tables = (
        (gateway.keys, "gatewaykeys"),
        (gateway.accounts, "gatewayaccounts"),
        (gateway.users, "gatewayusers"),
    )
    keys, accounts, users = (ReadThrough(table, gateway.kube, kind) for table, kind in tables)
    now = time.time()
    authenticator = Authenticator(keys, accounts, users, PEPPERS, clock=lambda: now)

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

    keys = ReadThrough(gateway.keys, gateway.kube, "gatewaykeys")
    accounts = ReadThrough(gateway.accounts, gateway.kube, "gatewayaccounts")
    users = Users(gateway.users, gateway.kube, "gatewayusers")
    authenticator = Authenticator(keys, accounts, users, PEPPERS)
    for table in tables:
        table.staleness = 6.0
    await authenticator.authenticate(headers)
    with pytest.raises(Unauthenticated):
        await authenticator.authenticate(headers)


async def test_both_tokens_of_a_key_that_is_rotated(gateway: Gateway) -> None:
    first, second = mint_key(), mint_key()
    tokens = [
        {"id": key.id, "digest": digest(key.plaintext, b"p" * 32), "hint": "x"}
        for key in (first, second)
    ]
    gateway.put_key("demo", tokens=tokens)
    for key in (first, second):
        assert (await ask(gateway, f"Bearer {key.plaintext}")).status == 200


async def test_an_older_pepper_still_opens_and_an_unknown_one_does_not(gateway: Gateway) -> None:
    assert (await ask(gateway, f"Bearer {gateway.put_key('demo', pepper=2)}")).status == 200
    lost = gateway.put_key("demo", token={"pepperVersion": 9})
    assert (await ask(gateway, f"Bearer {lost}")).status == 401


async def test_a_second_key_with_the_same_token_id_hides_nothing(gateway: Gateway) -> None:
    token = {"id": gateway.key[3:11], "digest": "0" * 64}
    gateway.put_key("guest", token=token)
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200


async def test_a_deleted_key(gateway: Gateway) -> None:
    gateway.kube.remove("gatewaykeys", "key-" + gateway.key[3:11])
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401


async def test_a_suspended_or_missing_account(gateway: Gateway) -> None:
    gateway.put_account("demo", suspended=True)
    assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401
    assert (await ask(gateway, f"Bearer {gateway.put_key('nobody')}")).status == 401


async def test_a_management_key_is_forbidden_here(gateway: Gateway) -> None:
    manager = gateway.put_key("demo", "Management")
    for answer in (await ask(gateway, f"Bearer {manager}"), await gateway.create(key=manager)):
        assert answer.status == 403
        assert set(answer.json) == {"error"}
    gateway.change_key(manager, revoked=True)
    assert (await ask(gateway, f"Bearer {manager}")).status == 401


async def test_other_carriers_of_a_key_do_not_count(gateway: Gateway) -> None:
    headers = [("X-Goog-Api-Key", gateway.key)]
    answer = await call(gateway.app, "GET", ME, headers=headers, query=f"key={gateway.key}")
    assert answer.status == 401


class TestRoles:
    """A key acts with the present role of who made it (contract §9.2)."""

    @pytest.mark.parametrize(
        ("role", "status"), [("owner", 202), ("admin", 202), ("member", 202), ("viewer", 403)]
    )
    async def test_only_a_viewer_may_not_create(
        self, gateway: Gateway, role: str, status: int
    ) -> None:
        gateway.put_user("mia", {"demo": role, "guest": "owner"})
        key = gateway.put_key("demo", createdBy="mia")
        answer = await gateway.create(key=key)
        assert answer.status == status
        assert "www-authenticate" not in answer.headers
        assert (await ask(gateway, f"Bearer {key}")).status == 200

    async def test_viewer_is_refused_and_nothing_is_counted(self, gateway: Gateway) -> None:
        gateway.put_user("mia", {"demo": "viewer"})
        answer = await gateway.create(b"{", key=gateway.put_key("demo", createdBy="mia"))
        assert answer.status == 403
        assert "viewer" in answer.json["error"]
        assert not any(name.startswith("x-ratelimit") for name in answer.headers)
        assert (await gateway.create()).headers["x-ratelimit-remaining-rpm"] == "299"

    async def test_a_change_of_role_is_felt_by_keys_there_are(self, gateway: Gateway) -> None:
        gateway.put_user("mia", {"demo": "member"})
        key = gateway.put_key("demo", createdBy="mia")
        assert (await gateway.create(key=key)).status == 202
        gateway.put_user("mia", {"demo": "viewer"})
        assert (await gateway.create(key=key)).status == 403
        gateway.put_user("mia", {"demo": "member"})
        assert (await gateway.create(key=key)).status == 202

    @pytest.mark.parametrize("key_class", ["Standard", "Management"])
    @pytest.mark.parametrize("end", ["removed", "of another account", "suspended", "deleted"])
    async def test_who_is_no_member_any_more_opens_nothing(
        self, gateway: Gateway, key_class: KeyClass, end: str
    ) -> None:
        gateway.put_user("mia", {"demo": "owner"})
        key = gateway.put_key("demo", key_class, createdBy="mia")
        before = await ask(gateway, f"Bearer {key}")
        assert before.status == (200 if key_class == "Standard" else 403)
        match end:
            case "removed":
                gateway.put_user("mia", {})
            case "of another account":
                gateway.put_user("mia", {"guest": "owner"})
            case "suspended":
                gateway.put_user("mia", {"demo": "owner"}, suspended=True)
            case _:
                gateway.kube.remove("gatewayusers", "mia")
        assert (await ask(gateway, f"Bearer {key}")).status == 401

    async def test_a_creator_that_was_never_there(self, gateway: Gateway) -> None:
        key = gateway.put_key("demo", createdBy="nobody")
        assert (await ask(gateway, f"Bearer {key}")).status == 401
        gateway.put_user("nobody", {"demo": "member"})
        assert (await ask(gateway, f"Bearer {key}")).status == 200


async def test_tokens_that_the_operator_wrote_open_too(gateway: Gateway) -> None:
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
async def test_refusing_an_unknown_key_takes_the_work_of_a_known_one(
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
async def test_before_the_first_list(gateway: Gateway, table: str) -> None:
    getattr(gateway, table).synced = False
    answer = await ask(gateway, f"Bearer {gateway.key}")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert (await ask(gateway, "Bearer nonsense")).status == 401


class TestSilentWatch:
    """A key is read by name while its watch says nothing for more than 5 s."""

    async def test_a_revocation_is_seen_without_the_watch(self, gateway: Gateway) -> None:
        gateway.keys.cut, gateway.keys.staleness = True, 5.1
        gateway.change_key(gateway.key, revoked=True)
        assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401

    async def test_so_is_a_rotation_of_the_secret(self, gateway: Gateway) -> None:
        gateway.keys.cut, gateway.keys.staleness = True, 5.1
        token = {"id": gateway.key[3:11], "digest": "1" * 64, "hint": "x"}
        gateway.change_key(gateway.key, tokens=[token])
        assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401

    async def test_so_is_a_deletion(self, gateway: Gateway) -> None:
        gateway.keys.cut, gateway.keys.staleness = True, 5.1
        gateway.kube.remove("gatewaykeys", "key-" + gateway.key[3:11])
        assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401

    async def test_so_is_a_suspension(self, gateway: Gateway) -> None:
        gateway.accounts.cut, gateway.accounts.staleness = True, 5.1
        gateway.put_account("demo", suspended=True)
        assert (await ask(gateway, f"Bearer {gateway.key}")).status == 401

    async def test_so_is_a_change_of_role_and_a_removal(self, gateway: Gateway) -> None:
        gateway.put_user("mia", {"demo": "member"})
        key = gateway.put_key("demo", createdBy="mia")
        gateway.users.cut, gateway.users.staleness = True, 5.1
        gateway.put_user("mia", {"demo": "viewer"})
        assert (await gateway.create(key=key)).status == 403

    async def test_so_is_a_removed_member(self, gateway: Gateway) -> None:
        gateway.put_user("mia", {"demo": "member"})
        key = gateway.put_key("demo", createdBy="mia")
        gateway.users.cut, gateway.users.staleness = True, 5.1
        gateway.put_user("mia", {})
        assert (await ask(gateway, f"Bearer {key}")).status == 401

    async def test_a_key_made_anew_by_another_is_looked_at_again(self, gateway: Gateway) -> None:
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

    async def test_a_key_is_read_once_a_second(self, gateway: Gateway) -> None:
        gateway.keys.staleness = 5.1
        for _ in range(5):
            assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200
        assert gateway.kube.calls.count(("get", "gatewaykeys")) == 1

    async def test_a_lively_watch_is_believed(self, gateway: Gateway) -> None:
        assert (await ask(gateway, f"Bearer {gateway.key}")).status == 200
        assert ("get", "gatewaykeys") not in gateway.kube.calls

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


def test_settings_hold_no_secret() -> None:
    # a number of keys is none
    assert "key" not in "".join(ApiSettings.model_fields.keys() - {"keys_per_account"})


async def test_a_poll_of_an_unserved_path_needs_no_credential_to_be_404(gateway: Gateway) -> None:
    answer = await call(gateway.app, "GET", "/api/v1/nobody/reference_to_video/task_x")
    assert answer.status == 404
    assert (await call(gateway.app, "GET", PATH + "/task_x")).status == 401
