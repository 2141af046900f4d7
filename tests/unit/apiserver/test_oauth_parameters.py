"""Repeated parameters at each endpoint of the authorization server (contract §10.6, §10.7)."""

from urllib.parse import urlencode

import pytest

from tests.unit.apiserver.browsing import REDIRECT, AppBrowser, locate, put_client
from tests.unit.apiserver.gateway import Answer, Gateway, call

MCP_URL = "http://127.0.0.1:8087"
EQUIVALENT = [
    [MCP_URL, MCP_URL],
    [MCP_URL, f"{MCP_URL}/", f"{MCP_URL}/mcp", f"{MCP_URL}/mcp/", f"HTTP{MCP_URL[4:]}/mcp"],
    [f"{MCP_URL}/mcp", "", f"{MCP_URL}/mcp"],
]
FOREIGN = [
    ["https://evil.example"],
    [MCP_URL, "https://evil.example"],
    ["https://evil.example", MCP_URL],
    [MCP_URL, f"{MCP_URL}/other"],
]


def repeat(name: str, values: list[str]) -> str:
    return urlencode([(name, value) for value in values])


async def post(gateway: Gateway, path: str, text: str) -> Answer:
    headers = [("Content-Type", "application/x-www-form-urlencoded")]
    return await call(gateway.app, "POST", path, headers=headers, content=text.encode())


async def ask_all(gateway: Gateway, repeated: str) -> dict[str, str]:
    """The errors of all endpoints for a request with these parameters too."""
    client = put_client(gateway)
    page = await AppBrowser(gateway).get(f"{locate(client)}&{repeated}")
    asked = {"client_id": client, "grant_type": "refresh_token", "refresh_token": "x"}
    token = await post(gateway, "/oauth/token", f"{urlencode(asked)}&{repeated}")
    revoked = await post(gateway, "/oauth/revoke", f"client_id={client}&token=x&{repeated}")
    return {
        "authorize": page.parameters.get("error", "") if page.status == 302 else "",
        "token": token.json["error"],
        "revoke": revoked.json["error"] if revoked.status == 400 else "",
    }


@pytest.mark.parametrize("values", EQUIVALENT)
async def test_equivalent_resources_count_as_one(gateway: Gateway, values: list[str]) -> None:
    errors = await ask_all(gateway, repeat("resource", values))
    assert errors == {"authorize": "", "token": "invalid_grant", "revoke": ""}


@pytest.mark.parametrize("values", FOREIGN)
async def test_foreign_resource_is_refused_also_among_others(
    gateway: Gateway, values: list[str]
) -> None:
    errors = await ask_all(gateway, repeat("resource", values))
    assert set(errors.values()) == {"invalid_target"}


@pytest.mark.parametrize("name", ["scope", "unknown"])
async def test_repeated_parameter_is_refused_unless_it_is_empty(
    gateway: Gateway, name: str
) -> None:
    errors = await ask_all(gateway, repeat(name, ["a", "a"]))
    assert set(errors.values()) == {"invalid_request"}
    errors = await ask_all(gateway, repeat(name, ["", "a", ""]))
    assert "invalid_request" not in errors.values()


@pytest.mark.parametrize(
    "name", ["response_type", "code_challenge", "code_challenge_method", "state"]
)
async def test_parameters_of_the_authorization_may_not_be_repeated(
    gateway: Gateway, name: str
) -> None:
    page = await AppBrowser(gateway).get(f"{locate(put_client(gateway))}&{name}=S256")
    assert page.location is not None
    assert page.location.startswith(f"{REDIRECT}?")
    assert page.parameters["error"] == "invalid_request"


@pytest.mark.parametrize("name", ["client_id", "redirect_uri"])
async def test_repeated_client_or_redirect_leads_nowhere(gateway: Gateway, name: str) -> None:
    path = locate(put_client(gateway), redirect_uri=REDIRECT)
    page = await AppBrowser(gateway).get(f"{path}&{name}=x")
    assert (page.status, page.location) == (400, None)


@pytest.mark.parametrize("name", ["account", "decision", "form_token"])
async def test_fields_of_the_consent_may_not_be_repeated(gateway: Gateway, name: str) -> None:
    query = locate(put_client(gateway)).partition("?")[2]
    answer = await post(gateway, "/oauth/authorize", f"{query}&{repeat(name, ['a', 'b'])}")
    assert answer.status == 400
    assert "A parameter is repeated." in answer.body.decode()


@pytest.mark.parametrize("name", ["grant_type", "code", "code_verifier", "client_id", "token"])
async def test_parameters_of_forms_may_not_be_repeated(gateway: Gateway, name: str) -> None:
    for path in ("/oauth/token", "/oauth/revoke"):
        answer = await post(gateway, path, repeat(name, ["a", "b"]))
        assert (answer.status, answer.json["error"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "body",
    [
        b'{"redirect_uris": ["https://a.example/cb"], "redirect_uris": ["https://b.example/cb"]}',
        b'{"redirect_uris": ["https://a.example/cb"], "scope": "a", "scope": "a"}',
        b'{"redirect_uris": ["https://a.example/cb"], "x": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    ],
)
async def test_members_of_a_registration_may_not_be_repeated(gateway: Gateway, body: bytes) -> None:
    headers = [("Content-Type", "application/json")]
    answer = await call(gateway.app, "POST", "/oauth/register", headers=headers, content=body)
    assert (answer.status, answer.json["error"]) == (400, "invalid_client_metadata")
    assert gateway.kube.list_objects("gatewayoauthclients") == []
