"""Floods of registrations and other calls without a credential end in 429 (I11)."""

from typing import Any

import orjson

from tests.unit.apiserver.gateway import Answer, Gateway, call


async def register(gateway: Gateway, **changes: Any) -> Answer:
    body = {"redirect_uris": ["https://app.example.com/cb"], **changes}
    headers = [("Content-Type", "application/json")]
    return await call(
        gateway.app, "POST", "/oauth/register", headers=headers, content=orjson.dumps(body)
    )


async def test_registrations_of_one_address_are_limited_by_the_minute(gateway: Gateway) -> None:
    statuses = [(await register(gateway)).status for _ in range(21)]
    assert statuses == [201] * 20 + [429]
    answer = await register(gateway)
    assert answer.json["error"] == "temporarily_unavailable"
    assert 0 < int(answer.headers["retry-after"]) <= 60
    gateway.transient.now += 60
    assert (await register(gateway)).status == 201


async def test_unused_clients_are_limited_whatever_their_addresses() -> None:
    gateway = Gateway(oauth_unused_clients=3, oauth_registrations_per_minute=1000)
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


async def test_calls_of_the_token_endpoint_are_limited(gateway: Gateway) -> None:
    headers = [("Content-Type", "application/x-www-form-urlencoded")]

    async def ask() -> int:
        answer = await call(gateway.app, "POST", "/oauth/token", headers=headers, content=b"a=b")
        return answer.status

    assert {await ask() for _ in range(600)} == {401}
    assert await ask() == 429


async def test_registration_can_be_turned_off() -> None:
    gateway = Gateway(oauth_registration=False)
    assert (await register(gateway)).status == 404
    answer = await call(gateway.app, "GET", "/.well-known/oauth-authorization-server")
    assert "registration_endpoint" not in answer.json


async def test_maintenance_stops_what_creates() -> None:
    gateway = Gateway(maintenance=True)
    assert (await register(gateway)).status == 503


async def test_client_document_is_fetched_once_and_checked(gateway: Gateway) -> None:
    url = "https://app.example.com/client.json"
    document = {
        "client_id": url,
        "client_name": "By document",
        "redirect_uris": ["https://app.example.com/cb"],
    }
    query = "response_type=code&code_challenge_method=S256&code_challenge=" + "a" * 43

    async def ask(named: str = url) -> Answer:
        return await call(
            gateway.app, "GET", "/oauth/authorize", query=f"{query}&client_id={named}"
        )

    for wrong in (
        {**document, "client_id": url + "/"},
        {**document, "redirect_uris": ["javascript:x"]},
        {**document, "token_endpoint_auth_method": "client_secret_post"},
        {**document, "client_name": None},
        {**document, "client_name": "x" * 9000},
        [],
    ):
        gateway.documents.pages[url] = orjson.dumps(wrong)
        answer = await ask()
        assert answer.status == 400, wrong
        assert "location" not in answer.headers
    gateway.documents.pages[url] = orjson.dumps(document)
    before = len(gateway.documents.fetched)
    for _ in range(3):
        answer = await ask()
        assert answer.headers["location"].startswith("/sign-in?next=")
    assert len(gateway.documents.fetched) == before + 1
    for other in (
        "http://app.example.com/client.json",
        "https://app.example.com",
        "https://app.example.com/",
        "https://u@app.example.com/c",
        "https://app.example.com/a/../c",
        "https://app.example.com/c%23x",
    ):
        assert (await ask(other)).status == 400


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
