"""The endpoint's protocol, sentence by sentence of contract §10.2, on fakes."""

import asyncio
import gc

import orjson
import pytest

from gateway_core.api.resource import RELEASE
from gateway_mcpserver import endpoint
from gateway_mcpserver.protocol import messages
from gateway_mcpserver.tools.tool import ToolResult
from gateway_mcpserver.tools.toolbox import Toolbox
from tests.unit.mcpserver.gateway import META, MODERN, McpGateway

INITIALIZE = {"clientInfo": {"name": "test", "version": "1"}, "capabilities": {}}
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@pytest.fixture
def gateway():
    return McpGateway()


# legacy


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_initialize_answers_with_the_version_that_was_asked_for(gateway, version):
    answer = await gateway.ask("initialize", {**INITIALIZE, "protocolVersion": version})
    assert answer.status == 200
    assert answer.json["result"]["protocolVersion"] == version
    assert answer.json["result"]["serverInfo"]["version"] == RELEASE
    assert set(answer.json["result"]["capabilities"]) == {"tools", "prompts", "resources"}
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("version", ["2099-01-01", MODERN, None, 5])
async def test_initialize_with_another_version_answers_with_the_newest(gateway, version):
    answer = await gateway.ask("initialize", {**INITIALIZE, "protocolVersion": version})
    assert answer.json["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-11-25"])
async def test_legacy_requests_need_no_version_and_no_session(gateway, version):
    answer = await gateway.ask("tools/list", mcp_protocol_version=version, mcp_session_id="any")
    result = answer.json["result"]
    assert [tool["name"] for tool in result["tools"]] == [
        "list_models",
        "get_model_info",
        "list_actions",
        "check_pricing",
        "search_prompts",
        "create_task",
        "get_task",
        "list_tasks",
        "cancel_task",
        "check_balance",
    ]
    assert "resultType" not in result


async def test_ping_and_unknown_methods_of_the_legacy_era_are_answered_with_200(gateway):
    assert (await gateway.ask("ping")).json["result"] == {}
    answer = await gateway.ask("logging/setLevel", {"level": "info"})
    assert answer.status == 200
    assert answer.json["error"]["code"] == -32601


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD"])
@pytest.mark.parametrize("key", ["", None])
async def test_methods_but_post_are_refused_before_the_credential(gateway, method, key):
    answer = await gateway.send(method=method, raw=b"", key=key)
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"
    if method != "HEAD":
        assert answer.json["error"]["message"] == "Method not allowed: this path allows POST."


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}},
        {"jsonrpc": "2.0", "id": 4, "result": {}},
    ],
)
async def test_notifications_and_responses_are_taken_without_a_body(gateway, body):
    answer = await gateway.send(body)
    assert (answer.status, answer.body) == (202, b"")


# modern


async def test_discover_names_the_modern_version_alone(gateway):
    result = (await gateway.ask_modern("server/discover")).json["result"]
    assert result["resultType"] == "complete"
    assert result["supportedVersions"] == [MODERN]
    assert result["_meta"][SERVER_INFO] == {
        "name": "model-gateway",
        "title": "Model Gateway",
        "version": RELEASE,
    }
    assert result["ttlMs"] >= 0
    assert result["cacheScope"] == "private"
    assert result["instructions"]


@pytest.mark.parametrize(
    ("method", "member"),
    [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ],
)
async def test_lists_may_be_kept_by_their_client_alone(gateway, method, member):
    result = (await gateway.ask_modern(method)).json["result"]
    assert isinstance(result[member], list)
    assert (result["resultType"], result["cacheScope"]) == ("complete", "private")
    assert result["ttlMs"] >= 0


@pytest.mark.parametrize(
    "meta",
    [
        *({name: META[name] for name in META if name != missing} for missing in META),
        *({**META, CAPABILITIES: value} for value in (None, [], "all")),
    ],
)
async def test_incomplete_or_malformed_envelope_is_refused(gateway, meta):
    answer = await gateway.ask_modern("tools/list", {"_meta": meta})
    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (400, -32602, 1)


async def test_params_of_null_count_as_absent(gateway):
    answer = await gateway.send({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None})
    assert answer.json["result"] == {}


async def test_modern_header_without_an_envelope_is_refused(gateway):
    answer = await gateway.ask("tools/list", mcp_protocol_version=MODERN, mcp_method="tools/list")
    assert (answer.status, answer.json["error"]["code"]) == (400, -32602)


async def test_error_of_an_unknown_version_names_those_served(gateway):
    meta = {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    answer = await gateway.ask_modern(
        "tools/list", {"_meta": meta}, mcp_protocol_version="2099-01-01"
    )
    assert answer.status == 400
    assert answer.json["error"]["code"] == -32022
    assert answer.json["error"]["data"] == {"requested": "2099-01-01", "supported": [MODERN]}
    alone = await gateway.ask("tools/list", mcp_protocol_version="1999-01-01")
    assert alone.json["error"]["data"] == {"requested": "1999-01-01", "supported": [MODERN]}


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_protocol_version": "2025-11-25"},
        {"mcp_protocol_version": None},
        {"mcp_method": None},
        {"mcp_method": "tools/List"},
        {"mcp_name": None},
        {"mcp_name": "get_task"},
        {"mcp_name": "=?base64?!?="},
    ],
)
async def test_headers_that_differ_from_the_body_are_refused(gateway, headers):
    params = {"name": "list_actions", "arguments": {}}
    answer = await gateway.ask_modern("tools/call", params, **headers)
    assert (answer.status, answer.json["error"]["code"]) == (400, -32020)
    assert answer.json["id"] == 1


@pytest.mark.parametrize("name", ["  list_actions ", "=?base64?bGlzdF9hY3Rpb25z?="])
async def test_name_header_may_be_padded_or_encoded(gateway, name):
    params = {"name": "list_actions", "arguments": {}}
    answer = await gateway.ask_modern("tools/call", params, mcp_name=name)
    assert answer.status == 200
    assert answer.json["result"]["resultType"] == "complete"


@pytest.mark.parametrize("method", ["initialize", "ping", "tasks/list", "unknown"])
async def test_methods_that_the_modern_era_lacks_are_unknown(gateway, method):
    answer = await gateway.ask_modern(method)
    assert (answer.status, answer.json["error"]["code"]) == (404, -32601)
    assert answer.json["id"] == 1


async def test_modern_notification_is_taken(gateway):
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"_meta": META}}
    assert (await gateway.send(body, mcp_protocol_version=MODERN)).status == 202
    assert (await gateway.send(body, mcp_protocol_version="2099-01-01")).status == 400


# every POST


@pytest.mark.parametrize("media_type", ["text/plain", "application/json-rpc", None])
async def test_body_of_another_type_is_refused(gateway, media_type):
    answer = await gateway.ask("ping", content_type=media_type)
    assert answer.status == 415
    assert answer.json["error"]["code"] == -32600


BOTH, JSON_ALONE, REFUSED = (200, 200), (200, 406), (406, 406)
"""Statuses of a ping and of a subscription, which only a stream answers."""


@pytest.mark.parametrize(
    ("accept", "statuses"),
    [
        (None, BOTH),
        ("", BOTH),
        ("*/*", BOTH),
        ("application/json, text/event-stream", BOTH),
        ("text/event-stream;q=0.1, APPLICATION/JSON ; charset=utf-8", BOTH),
        ("application/*;q=0.5, text/*", BOTH),
        ("text/html, application/json;q=0.9, */*;q=0.8", BOTH),
        ("application/json, text/event-stream;q=0.001", BOTH),
        ("application/json", JSON_ALONE),
        ("application/json;q=0.2, text/html", JSON_ALONE),
        ("application/*", JSON_ALONE),
        ("application/json, text/event-stream;q=0", JSON_ALONE),
        ("application/json, text/event-stream; q=0.000", JSON_ALONE),
        ("*/*, text/event-stream;q=0", JSON_ALONE),
        ("text/*;q=0, */*", JSON_ALONE),
        ("application/json, text/event-stream\xa0", JSON_ALONE),
        ("text/event-stream", REFUSED),
        ("*/*, application/json;q=0", REFUSED),
        ("application/*;q=0, */*", REFUSED),
        ("text/html", REFUSED),
        ("*/*;q=0", REFUSED),
    ],
)
async def test_accept_decides_on_requests_and_never_on_notifications(gateway, accept, statuses):
    answer = await gateway.ask("ping", accept=accept)
    assert answer.status == statuses[0]
    assert answer.headers["content-type"] == "application/json"
    body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await gateway.send(body, accept=accept)).status == 202
    # a subscription ends at once in a process that drains
    gateway.mcp_drain.begin()
    answer = await gateway.ask_modern("subscriptions/listen", {"notifications": {}}, accept=accept)
    assert answer.status == statuses[1]
    if answer.status == 406:
        assert answer.json["error"]["code"] == -32600


async def test_longest_body_is_four_mebibytes(gateway):
    head = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"'
    fits = head + b"x" * (4 * 1024 * 1024 - len(head) - 3) + b'"}}'
    assert (await gateway.send(raw=fits)).status == 200
    answer = await gateway.send(raw=fits + b" ")
    assert answer.status == 413
    assert answer.json["id"] is None


async def test_large_bodies_are_parsed_within_one_bound(gateway, monkeypatch):
    monkeypatch.setattr(endpoint, "_PARSE_SECONDS", 0.1)
    monkeypatch.setattr(endpoint, "_PARSED_BYTES", 2 * 1024 * 1024)
    gateway = McpGateway()
    begun, gate = asyncio.Event(), asyncio.Event()

    async def hold(*_):
        begun.set()
        await gate.wait()
        return ToolResult(b"{}")

    monkeypatch.setattr(Toolbox, "call", hold)
    objects = b",".join([b"{}"] * 347_000)
    head = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_actions"'
    raw = head + b',"arguments":{"x":[' + objects + b"]}}}"
    assert len(raw) < 1024 * 1024
    first = asyncio.create_task(gateway.send(raw=raw))
    await begun.wait()
    refused = await gateway.send(raw=raw)
    assert refused.status == 503
    assert refused.headers["retry-after"]
    # small ones need no room
    assert (await gateway.ask("ping")).status == 200
    gate.set()
    assert (await first).status == 200
    assert (await gateway.send(raw=raw)).status == 200


def test_collector_rests_only_while_a_long_body_is_parsed(monkeypatch):
    seen = []

    def load(raw):
        seen.append(gc.isenabled())
        return real(raw)

    real = orjson.loads
    monkeypatch.setattr(messages.orjson, "loads", load)
    head = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"'
    for size in (10, 300_000):
        messages.parse_message(head + b"x" * size + b'"}}')
    with pytest.raises(messages.RpcError):
        messages.parse_message(b"x" * 300_000)
    assert seen == [True, False, False]
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("raw", "code", "request_id"),
    [
        (b"", -32700, None),
        (b"{", -32700, None),
        (b"\xff", -32700, None),
        (b"[" * 5000 + b"]" * 5000, -32700, None),
        (b"[]", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
        (b"7", -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":"' + b"x" * 257 + b'","method":"ping"}', -32600, None),
        (b'{"id":"a","method":"ping"}', -32600, "a"),
        (b'{"jsonrpc":"2.0","id":"a","method":7}', -32600, "a"),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":[]}', -32600, "a"),
    ],
)
async def test_invalid_message_is_refused_with_its_id(gateway, raw, code, request_id):
    answer = await gateway.send(raw=raw)
    assert answer.status == 400
    assert (answer.json["error"]["code"], answer.json["id"]) == (code, request_id)


@pytest.mark.parametrize("request_id", [0, -5, "a", "", 2**60])
async def test_response_has_the_id_of_its_request(gateway, request_id):
    body = {"jsonrpc": "2.0", "id": request_id, "method": "ping"}
    assert (await gateway.send(body)).json["id"] == request_id


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://[::1", ""]
)
@pytest.mark.parametrize("key", ["", None])
async def test_foreign_origin_is_refused_before_the_credential(gateway, origin, key):
    answer = await gateway.ask("ping", origin=origin, key=key)
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers
    assert answer.json["error"]["code"] == -32600


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:8087", "http://127.0.0.1:8080", "http://localhost:6274", "http://[::1]:1"],
)
async def test_allowed_origin_reads_responses_and_challenges(gateway, origin):
    for key in ("", None):
        answer = await gateway.ask("ping", origin=origin, key=key)
        assert answer.status == (200 if key == "" else 401)
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-expose-headers"] == "WWW-Authenticate, X-Request-Id"
        assert answer.headers["vary"] == "Origin"


async def test_preflight_names_methods_and_headers(gateway):
    answer = await gateway.send(method="OPTIONS", raw=b"", key=None, origin="http://localhost:6274")
    assert answer.status == 204
    assert answer.headers["access-control-allow-methods"] == "POST, OPTIONS"
    assert answer.headers["access-control-allow-headers"] == (
        "Authorization, Content-Type, Accept, MCP-Protocol-Version, Mcp-Method, Mcp-Name,"
        " Mcp-Session-Id, Last-Event-ID"
    )


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", None])
async def test_foreign_host_is_refused_before_all_else(gateway, host):
    answer = await gateway.ask("ping", host=host, key=None, origin="https://evil.example")
    assert answer.status == 421
    assert answer.json["id"] is None


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({"mcp_url": "https://mcp.example.com"}, "MCP.example.com"),
        ({"mcp_url": "https://mcp.example.com"}, "mcp.example.com:443"),
        ({"mcp_allowed_hosts": "inner:8087, other"}, "inner:8087"),
        ({}, "localhost:9999"),
    ],
)
async def test_own_configured_and_loopback_hosts_are_served(settings, host):
    assert (await McpGateway(**settings).ask("ping", host=host)).status == 200


async def test_every_response_has_a_request_id_of_its_own(gateway):
    seen = set()
    for more in ({}, {"key": None}, {"host": "evil.example"}, {"path": "/nothing"}):
        answer = await gateway.ask("ping", x_request_id="chosen", **more)
        seen.add(answer.headers["x-request-id"])
    assert len(seen) == 4
    assert all(each.startswith("req_") for each in seen)


# documents


@pytest.mark.parametrize("suffix", ["", "/mcp", "/mcp/"])
async def test_discovery_documents_are_served_on_the_mcp_host(gateway, suffix):
    path = "/.well-known/oauth-protected-resource" + suffix
    resource = await gateway.send(method="GET", raw=b"", path=path, key=None)
    assert resource.json["resource"] == f"http://127.0.0.1:8087{suffix}"
    assert resource.json["authorization_servers"] == ["http://127.0.0.1:8080"]
    assert resource.headers["cache-control"] == "public, max-age=300"
    assert resource.headers["access-control-allow-origin"] == "*"
    path = "/.well-known/oauth-authorization-server" + suffix.rstrip("/")
    server = await gateway.send(method="GET", raw=b"", path=path, key=None)
    assert server.json["issuer"] == "http://127.0.0.1:8080"
    head = await gateway.send(method="HEAD", raw=b"", path=path, key=None)
    assert (head.status, head.body) == (200, b"")
    assert (await gateway.send(method="OPTIONS", raw=b"", path=path, key=None)).status == 204


@pytest.mark.parametrize(
    "path", ["/.well-known/openid-configuration", "/", "/mcp/x", "/mcp//", "/sse", "/v1/mcp"]
)
async def test_unknown_paths_do_not_exist(gateway, path):
    answer = await gateway.send(method="GET", raw=b"", path=path, key=None)
    assert answer.status == 404
    if path.startswith("/.well-known/"):
        assert answer.json == {"error": "invalid_request", "error_description": "Not found."}
    else:
        text = answer.json["error"]
        text = text["message"] if path.startswith("/v1/") else text
        assert text == "Not found: the endpoint for MCP clients is /mcp."


async def test_documents_refuse_other_methods_in_their_dialect(gateway):
    path = "/.well-known/oauth-protected-resource"
    answer = await gateway.send(method="POST", raw=b"", path=path, key=None)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    text = "Method not allowed: this path allows GET, HEAD, OPTIONS."
    assert answer.json == {"error": "invalid_request", "error_description": text}


# tools


async def test_every_tool_is_described_in_full(gateway):
    listed = (await gateway.ask("tools/list")).json["result"]["tools"]
    for tool in listed:
        assert tool["description"]
        assert tool["inputSchema"]["type"] == "object"
        assert tool["inputSchema"]["additionalProperties"] is False
        assert tool["outputSchema"]["type"] == "object"
        read_only = tool["name"] not in ("create_task", "cancel_task")
        assert tool["annotations"]["readOnlyHint"] is read_only
        assert tool["annotations"]["destructiveHint"] is (tool["name"] == "cancel_task")
        assert tool["annotations"]["idempotentHint"] is True
        assert tool["annotations"]["openWorldHint"] is not read_only
        assert b"null" not in orjson.dumps(tool["inputSchema"])


@pytest.mark.parametrize(
    "params", [{"name": "nothing"}, {"name": 5}, {}, {"name": "get_task", "arguments": []}]
)
async def test_unknown_tools_and_arguments_that_are_no_object_are_errors_of_the_call(
    gateway, params
):
    answer = await gateway.ask("tools/call", params)
    assert (answer.status, answer.json["error"]["code"]) == (200, -32602)


async def test_bad_arguments_are_an_error_that_the_model_reads(gateway):
    result = await gateway.use("get_task", {"service": "sim", "colour": "red", "task_id": 5})
    assert result["isError"] is True
    assert "structuredContent" not in result
    text = result["content"][0]["text"]
    assert "action: is required." in text
    assert "colour: is not a known field." in text
    assert "task_id: must be a string." in text


async def test_structured_content_is_repeated_as_text(gateway):
    result = await gateway.use("list_actions", {})
    assert orjson.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert result["structuredContent"] == {
        "groups": [{"modality": "video", "actions": ["reference_to_video"]}]
    }
