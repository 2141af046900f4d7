"""Floods of registrations and other calls without a credential end in 429 (I11)."""

from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from gateway_apiserver.surfaces.oauth.endpoints import OAUTH_ALLOWANCES
from gateway_core.accounts.throttle import Allowance
from gateway_core.oauth.tokens import TokenMint
from tests.unit.apiserver.browsing import put_client
from tests.unit.apiserver.gateway import ID_KEY, Answer, Gateway, call

DOCUMENT = {"client_name": "By document", "redirect_uris": ["https://app.example.com/cb"]}


async def register(gateway: Gateway, address: str = "127.0.0.1", **changes: Any) -> Answer:
    body = {"redirect_uris": ["https://app.example.com/cb"], **changes}
    headers = [("Content-Type", "application/json")]
    return await call(
        gateway.app,
        "POST",
        "/oauth/register",
        headers=headers,
        content=orjson.dumps(body),
        address=address,
    )


async def test_registrations_of_one_address_are_limited_by_the_minute(gateway: Gateway) -> None:
    statuses = [(await register(gateway)).status for _ in range(21)]
    assert statuses == [201] * 20 + [429]
    answer = await register(gateway)
    assert answer.json["error"] == "temporarily_unavailable"
    assert 0 < int(answer.headers["retry-after"]) <= 60
    gateway.transient.now += 60
    assert (await register(gateway)).status == 201


async def test_registrations_of_one_address_are_limited_by_the_day() -> None:
    gateway = Gateway(oauth_registrations_per_day=3, oauth_registrations_per_minute=2)
    assert [(await register(gateway)).status for _ in range(3)] == [201, 201, 429]
    gateway.transient.now += 60
    assert [(await register(gateway)).status for _ in range(2)] == [201, 429]
    gateway.transient.now += 3600
    assert (await register(gateway)).status == 429
    assert (await register(gateway, address="192.0.2.9")).status == 201
    gateway.transient.now += 86_400
    assert (await register(gateway)).status == 201


async def test_addresses_of_one_ipv6_network_share_an_allowance() -> None:
    gateway = Gateway(oauth_registrations_per_day=2)
    for address, status in (
        ("2001:db8:0:1::1", 201),
        ("2001:db8:0:1:ffff::2", 201),
        ("2001:db8:0:1::3", 429),
        ("2001:db8:0:2::1", 201),
    ):
        assert (await register(gateway, address=address)).status == status, address


async def test_networks_of_one_ipv6_subscriber_share_a_larger_allowance() -> None:
    gateway = Gateway(oauth_registrations_per_day=1)
    for n in range(10):
        assert (await register(gateway, address=f"2001:db8:0:{n}::1")).status == 201
    assert (await register(gateway, address="2001:db8:0:ff::1")).status == 429
    assert (await register(gateway, address="2001:db8:1:ff::1")).status == 201
    for n in range(11):
        assert (await register(gateway, address=f"192.0.2.{n}")).status == 201


async def test_unused_clients_are_limited_whatever_their_addresses() -> None:
    gateway = Gateway(oauth_unused_clients=3, oauth_registrations_per_minute=1000)
    spec = {"clientName": "A", "redirectUris": ["a:b"]}
    # one that an admin declares does not count
    gateway.kube.put("gatewayoauthclients", {"metadata": {"name": "client-a"}, "spec": spec})
    ids = [(await register(gateway)).json["client_id"] for _ in range(3)]
    assert (await register(gateway)).status == 429
    name = ids[0].replace("_", "-", 1)
    client = await gateway.kube.get("gatewayoauthclients", name)
    await gateway.kube.patch("gatewayoauthclients", client, {"spec": {"authorized": True}})
    assert (await register(gateway)).status == 201
    assert (await register(gateway)).status == 429


async def test_without_redis_nobody_registers(gateway: Gateway) -> None:
    with gateway.transient.away():
        assert (await register(gateway)).status == 503
    assert gateway.kube.list_objects("gatewayoauthclients") == []


async def test_calls_of_the_token_endpoint_are_limited(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OAUTH_ALLOWANCES["token"] == Allowance(600, 60, optional=True)
    monkeypatch.setitem(OAUTH_ALLOWANCES, "token", Allowance(5, 60, optional=True))
    gateway = Gateway()
    headers = [("Content-Type", "application/x-www-form-urlencoded")]
    answers = [
        await call(gateway.app, "POST", "/oauth/token", headers=headers, content=b"a=b")
        for _ in range(6)
    ]
    assert [answer.status for answer in answers] == [401] * 5 + [429]


async def test_refreshes_are_limited_by_grant_whatever_their_address(gateway: Gateway) -> None:
    mint, client_id = TokenMint(ID_KEY), put_client(gateway)
    headers = [("Content-Type", "application/x-www-form-urlencoded")]

    async def refresh(token: str, address: str = "192.0.2.1") -> int:
        form = {"grant_type": "refresh_token", "client_id": client_id, "refresh_token": token}
        content = urlencode(form).encode()
        answer = await call(
            gateway.app, "POST", "/oauth/token", headers=headers, content=content, address=address
        )
        return answer.status

    first, second = (mint.mint("refresh", f"grant-{letter * 26}", 1) for letter in "ab")
    statuses = [await refresh(first, f"192.0.2.{n}") for n in range(31)]
    assert statuses == [400] * 30 + [429]
    assert await refresh(second) == 400
    # a forged token counts for no grant
    assert {await refresh(second[:-1] + "!") for _ in range(31)} == {400}
    assert await refresh(second) == 400
    with gateway.transient.away():
        assert await refresh(second) == 400


async def test_registration_can_be_turned_off() -> None:
    gateway = Gateway(oauth_registration=False)
    assert (await register(gateway)).status == 404
    answer = await call(gateway.app, "GET", "/.well-known/oauth-authorization-server")
    assert "registration_endpoint" not in answer.json


async def test_maintenance_refuses_registrations_and_codes() -> None:
    gateway = Gateway(maintenance=True)
    assert (await register(gateway)).status == 503
    headers = [("Content-Type", "application/x-www-form-urlencoded")]
    for grant_type, status in (("authorization_code", 503), ("refresh_token", 401)):
        content = f"grant_type={grant_type}".encode()
        answer = await call(gateway.app, "POST", "/oauth/token", headers=headers, content=content)
        assert answer.status == status


async def show_document(gateway: Gateway, url: str) -> Answer:
    query = "response_type=code&code_challenge_method=S256&code_challenge=" + "a" * 43
    return await call(gateway.app, "GET", "/oauth/authorize", query=f"{query}&client_id={url}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"client_id": "https://app.example.com/client.json/"},
        {"redirect_uris": ["javascript:x"]},
        {"token_endpoint_auth_method": "client_secret_post"},
        {"client_name": None},
        {"client_name": "x" * 9000},
        [],
    ],
)
async def test_client_document_is_checked(gateway: Gateway, wrong: Any) -> None:
    url = "https://app.example.com/client.json"
    body = {**DOCUMENT, "client_id": url, **wrong} if wrong else wrong
    gateway.documents.pages[url] = orjson.dumps(body)
    for _ in range(3):
        answer = await show_document(gateway, url)
        assert answer.status == 400
        assert "location" not in answer.headers
    assert len(gateway.documents.fetched) == 1


async def test_client_document_is_fetched_once(gateway: Gateway) -> None:
    url = "https://app.example.com/client.json"
    gateway.documents.pages[url] = orjson.dumps({**DOCUMENT, "client_id": url})
    for _ in range(3):
        answer = await show_document(gateway, url)
        assert answer.headers["location"].startswith("/sign-in?next=")
    assert len(gateway.documents.fetched) == 1
    for other in (
        "http://app.example.com/client.json",
        "https://app.example.com",
        "https://app.example.com/",
        "https://u@app.example.com/c",
        "https://app.example.com/a/../c",
        "https://app.example.com/c%23x",
    ):
        assert (await show_document(gateway, other)).status == 400


async def test_documents_are_fetched_for_one_address_twenty_times_a_minute(
    gateway: Gateway,
) -> None:
    statuses = []
    for n in range(21):
        query = f"client_id=https://app.example.com/{n}"
        answer = await call(gateway.app, "GET", "/oauth/authorize", query=query)
        statuses.append(answer.status)
    assert statuses == [400] * 20 + [429]
    assert len(gateway.documents.fetched) == 20
