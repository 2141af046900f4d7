"""Who may call the endpoint, and what others are told (contract §10.3), on fakes."""

import re

import pytest
from mcp.shared.auth_utils import check_resource_allowed

from gateway_core.api.key import digest
from gateway_core.oauth.tokens import TokenMint
from tests.unit.apiserver.gateway import ID_KEY, PEPPERS, call
from tests.unit.mcpserver.gateway import MCP_URL, McpGateway

METADATA = f'resource_metadata="{MCP_URL}/.well-known/oauth-protected-resource/mcp"'
CHALLENGE = f'Bearer {METADATA}, scope="mcp:read mcp:tasks"'
INVALID = f'{CHALLENGE}, error="invalid_token"'
GRANT = "grant-" + "a" * 26


class Scene(McpGateway):
    """A gateway with a user's grant."""

    def __init__(self):
        super().__init__()
        self.token = TokenMint(ID_KEY).mint("access", GRANT, 1)
        self.put_user("ann", {"demo": "member"})
        client = {"clientName": "A", "redirectUris": ["a:b"]}
        self.kube.put("gatewayoauthclients", {"metadata": {"name": "client-a"}, "spec": client})
        self.put_grant()

    def put_grant(self, scopes=("mcp:read", "mcp:tasks"), resource=MCP_URL, account="demo"):
        expiry = {"expirationTime": "2999-01-01T00:00:00Z"}
        token = {
            "generation": 1,
            "digest": digest(self.token, PEPPERS[1]),
            "scopes": list(scopes),
            **expiry,
        }
        spec = {
            "userName": "ann",
            "accountName": account,
            "clientId": "client_a",
            "clientName": "A",
            "redirectHost": "a:",
            "scopes": list(scopes),
            "resource": resource,
            "refreshToken": {"digest": "0" * 64, "generation": 1, **expiry},
            "accessTokens": [token],
            **expiry,
        }
        self.kube.put("gatewaygrants", {"metadata": {"name": GRANT}, "spec": spec})


@pytest.fixture
def scene():
    return Scene()


async def test_request_without_a_credential_is_challenged_without_an_error(scene):
    answer = await scene.ask("ping", key=None)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == CHALLENGE
    assert set(answer.json) == {"error", "error_description"}


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_challenge_names_the_document_of_the_url_that_was_requested(scene, path):
    answer = await scene.ask("ping", key=None, path=path)
    # as the Gemini CLI reads it
    named = re.search('resource_metadata="([^"]+)"', answer.headers["www-authenticate"])[1]
    assert named == f"{MCP_URL}/.well-known/oauth-protected-resource{path}"
    document = await scene.send(method="GET", raw=b"", path=named.removeprefix(MCP_URL), key=None)
    # strict clients compare it with the URL (RFC 9728 §3.3), the Python SDK the hierarchy
    assert document.json["resource"] == f"{MCP_URL}{path}"
    assert check_resource_allowed(f"{MCP_URL}{path}", document.json["resource"])
    scene.put_grant(scopes=["mcp:read"])
    params = {"name": "get_task", "arguments": {}}
    answer = await scene.ask("tools/call", params, key=scene.token, path=path)
    assert answer.status == 403
    assert f'resource_metadata="{named}"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    "credential",
    ["Bearer sk-wrong", "Bearer  two", "Basic YTpi", "Bearer gwat_x", "Bearer ", "bearer gwrt_x"],
)
async def test_bad_credential_is_challenged_with_an_error(scene, credential):
    answer = await scene.ask("ping", authorization=credential)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == INVALID


async def test_credential_is_checked_before_the_body_is_read(scene):
    answer = await scene.send(raw=b"x" * 5_000_000, key=None, content_type="text/plain")
    assert answer.status == 401


async def test_standard_key_has_all_scopes_and_a_management_key_none(scene):
    assert (await scene.ask("ping")).status == 200
    assert not (await scene.create())["isError"]
    answer = await scene.ask("ping", key=scene.put_key("demo", "Management"))
    assert answer.status == 403
    assert "www-authenticate" not in answer.headers
    assert answer.json["error"] == "access_denied"


@pytest.mark.parametrize("change", [{"disabled": True}, {"expirationTime": "2001-01-01T00:00:00Z"}])
async def test_key_that_is_no_longer_valid_is_refused(scene, change):
    key = scene.put_key("demo", **change)
    assert (await scene.ask("ping", key=key)).status == 401


async def test_token_of_this_audience_acts_for_its_user_and_account(scene):
    assert (await scene.ask("ping", key=scene.token)).status == 200
    balance = await scene.use("check_balance", key=scene.token)
    assert balance["structuredContent"]["balance_cents"] == 10_000


async def test_token_of_another_audience_is_refused(scene):
    scene.put_grant(resource="https://other.example")
    answer = await scene.ask("ping", key=scene.token)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, INVALID)


async def test_token_is_refused_by_the_rest_api(scene):
    headers = [("authorization", f"Bearer {scene.token}")]
    assert (await call(scene.app, "GET", "/api/v1/me/balance", headers=headers)).status == 401


async def test_revoked_token_is_refused_at_once(scene):
    assert (await scene.ask("ping", key=scene.token)).status == 200
    await scene.kube.delete("gatewaygrants", GRANT)
    assert (await scene.ask("ping", key=scene.token)).status == 401


async def test_missing_scope_is_a_challenge_that_names_it(scene):
    scene.put_grant(scopes=["mcp:read"])
    params = {"name": "get_task", "arguments": {}}
    answer = await scene.ask("tools/call", params, key=scene.token)
    assert answer.status == 403
    assert answer.json["error"] == "insufficient_scope"
    expected = f'Bearer error="insufficient_scope", scope="mcp:tasks", {METADATA}'
    assert answer.headers["www-authenticate"] == expected
    assert (await scene.ask("tools/list", key=scene.token)).status == 200
    assert (await scene.use("list_models", key=scene.token))["isError"] is False


async def test_scope_for_tasks_implies_that_for_reads(scene):
    scene.put_grant(scopes=["mcp:tasks"])
    assert (await scene.use("list_models", key=scene.token))["isError"] is False


async def test_viewer_gets_an_error_of_the_tool_and_no_challenge(scene):
    scene.put_user("ann", {"demo": "viewer"})
    given = {"service": "sim", "action": "reference_to_video", "idempotency_key": "a"}
    result = await scene.use("create_task", given, key=scene.token)
    assert result["isError"] is True
    assert "viewer" in result["content"][0]["text"]
    assert scene.kube.list_objects("gatewaytasks") == []


async def test_task_of_another_account_is_as_unknown_as_any(scene):
    made = (await scene.create())["structuredContent"]["task_id"]
    given = {"service": "sim", "action": "reference_to_video"}
    foreign = await scene.use("get_task", {**given, "task_id": made}, key=scene.other_key)
    unknown = await scene.use("get_task", {**given, "task_id": "task_x"}, key=scene.other_key)
    assert foreign == unknown
    assert foreign["content"][0]["text"] == "Task not found."
    for name in given:
        other = {**given, "task_id": made, name: "other"}
        assert await scene.use("get_task", other) == unknown, "a task is of one service and action"


async def test_maintenance_stops_creates_alone():
    gateway = McpGateway(maintenance=True)
    result = await gateway.create()
    assert result["isError"] is True
    assert "Try again in" in result["content"][0]["text"]
    assert (await gateway.use("list_models"))["isError"] is False
