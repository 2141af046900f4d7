"""Errors in three dialects, also where nothing is routed (contract §0.1, §0.6, §0.8, §1)."""

import re
from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.management.responses import SecretState
from gateway_core.api import errors
from gateway_web.errors import Dialect, choose_dialect, render_error
from gateway_web.responses import Response
from tests.unit.apiserver.gateway import PATH, Gateway, call

ALL_ERRORS: list[tuple[errors.GatewayError, int]] = [
    (errors.InvalidRequest("m"), 400),
    (errors.Unauthenticated("m"), 401),
    (errors.InsufficientBalance("m"), 402),
    (errors.Forbidden("m"), 403),
    (errors.NotFound("m"), 404),
    (errors.MethodNotAllowed("GET"), 405),
    (errors.Conflict("m"), 409),
    (errors.TooLarge("m"), 413),
    (errors.UnsupportedMediaType("application/json"), 415),
    (errors.RateLimited(errors.RateState(300, 0, 1_800_000_007), 7), 429),
    (errors.TooManyCalls("m", retry_after=7), 429),
    (errors.CreditLimitExceeded("m"), 429),
    (errors.Internal("m"), 500),
    (errors.Unavailable("m", retry_after=500), 503),
    (errors.OutcomeUnknown("m"), 504),
]


@pytest.mark.parametrize(("error", "status"), ALL_ERRORS)
def test_every_error_in_every_dialect(error: errors.GatewayError, status: int) -> None:
    task = render_error(error, Dialect.TASK)
    assert task.status == status
    assert orjson.loads(task.body) == {"error": error.message}
    openai = orjson.loads(render_error(error, Dialect.OPENAI).body)["error"]
    assert set(openai) == {"message", "type", "param", "code"}
    assert isinstance(openai["code"], str)
    google = orjson.loads(render_error(error, Dialect.GOOGLE).body)["error"]
    assert set(google) == {"code", "message", "status", "details"}
    assert google["code"] == status
    oauth = orjson.loads(render_error(error, Dialect.OAUTH).body)
    assert set(oauth) == {"error", "error_description"}
    assert oauth["error"] == OAUTH_CODES.get(status, "invalid_request")
    assert oauth["error_description"] == error.message


OAUTH_CODES = {
    401: "invalid_client",
    403: "access_denied",
    429: "temporarily_unavailable",
    500: "server_error",
    503: "temporarily_unavailable",
    504: "server_error",
}
"""RFC 6749 §4.1.2.1 and §5.2."""


def test_oauth_description_has_the_characters_of_the_rfc() -> None:
    error = errors.InvalidRequest('The "scope" é is not known\\.\n')
    body = orjson.loads(render_error(error, Dialect.OAUTH).body)
    assert body["error_description"] == "The 'scope' ' is not known'.'"


def _headers(answer: Response) -> dict[bytes, bytes]:
    return dict(answer.headers)


def test_headers_of_the_table() -> None:
    def render(error: errors.GatewayError) -> dict[bytes, bytes]:
        return _headers(render_error(error, Dialect.TASK))

    assert render(errors.Unauthenticated("m"))[b"www-authenticate"] == b"Bearer"
    assert render(errors.Conflict("m"))[b"x-should-retry"] == b"false"
    assert render(errors.Unavailable("m", retry_after=500))[b"retry-after"] == b"120"
    limited = render(errors.RateLimited(errors.RateState(300, 0, 1_800_000_007), 7))
    assert limited[b"retry-after"] == b"7"
    assert limited[b"x-ratelimit-limit-rpm"] == b"300"
    assert limited[b"x-ratelimit-remaining-rpm"] == b"0"
    assert limited[b"x-ratelimit-reset"] == b"1800000007"
    free = render(errors.TooManyCalls("m", retry_after=7))
    assert free[b"retry-after"] == b"7"
    assert not any(name.startswith(b"x-ratelimit") for name in free)
    credit = render(errors.CreditLimitExceeded("m"))
    assert credit[b"x-should-retry"] == b"false"
    assert not any(name.startswith((b"retry", b"x-ratelimit")) for name in credit)


def test_native_rate_error_repeats_the_delay() -> None:
    error = errors.RateLimited(errors.RateState(300, 0, 1_800_000_007), 7)
    body = orjson.loads(render_error(error, Dialect.GOOGLE).body)
    assert body["error"]["details"] == [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}
    ]


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "dialect"),
    [
        ("GET", "/", "", [], Dialect.TASK),
        ("GET", "/v1x", "", [], Dialect.TASK),
        ("GET", "/api/v1/x", "", [("x-goog-api-key", "k")], Dialect.TASK),
        ("GET", "/v1", "", [], Dialect.OPENAI),
        ("GET", "/v1/models", "", [], Dialect.OPENAI),
        ("GET", "/v1/models", "", [("x-goog-api-key", "k")], Dialect.GOOGLE),
        ("GET", "/v1/models", "key=k", [], Dialect.GOOGLE),
        ("GET", "/v1/models", "monkey=k", [], Dialect.OPENAI),
        ("GET", "/v1/models", "key=k", [("authorization", "Bearer k")], Dialect.OPENAI),
        ("POST", "/v1/models/a/b:generateContent", "", [("authorization", "b")], Dialect.GOOGLE),
        ("POST", "/v1/models/a:whatever", "", [], Dialect.GOOGLE),
        ("GET", "/v1/models/a:countTokens", "", [], Dialect.GOOGLE),
        ("GET", "/v1/models/a:b", "", [], Dialect.OPENAI),
        ("GET", "/v1beta/nothing", "", [("authorization", "Bearer k")], Dialect.GOOGLE),
        ("POST", "/v1/files", "", [], Dialect.OPENAI),
        ("POST", "/oauth/token", "", [("authorization", "Basic x")], Dialect.OAUTH),
        ("GET", "/oauth", "", [], Dialect.OAUTH),
        ("GET", "/.well-known/openid-configuration", "key=k", [], Dialect.OAUTH),
        ("GET", "/.well-known", "", [("x-goog-api-key", "k")], Dialect.OAUTH),
        ("GET", "/oauthx", "", [], Dialect.TASK),
        ("GET", "/x/.well-known/a", "", [], Dialect.TASK),
    ],
)
def test_dialect_follows_from_the_request(
    method: str, path: str, query: str, headers: list[tuple[str, str]], dialect: Dialect
) -> None:
    scope = {
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    assert choose_dialect(scope) is dialect


UNROUTED = ("", "/", "/me/", "/me/nothing", "/file", "/nobody/reference_to_video", "/sim/nothing")
UNROUTED += ("/nobody/reference_to_video/task_x", "/sim//reference_to_video")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_unrouted_paths_are_404_without_a_redirect(gateway: Gateway, method: str) -> None:
    paths = [f"/api/v1{path}" for path in UNROUTED]
    paths += [PATH + "/", PATH + "//", PATH + "/task_x/", "/healthz/", "/docs/", "/redoc", "//"]
    for path in paths:
        answer = await call(gateway.app, method, path)
        assert (answer.status, [*answer.json]) == (404, ["error"]), path
        assert answer.json["error"].startswith("Not found"), path
        assert "location" not in answer.headers
    answer = await call(gateway.app, method, "/v1/assistants")
    assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
    answer = await call(gateway.app, method, "/v1beta/tunedModels/x:generateContent")
    assert answer.json["error"]["status"] == "NOT_FOUND"


async def test_unserved_methods_are_405(gateway: Gateway) -> None:
    for method, path, allow in (
        ("GET", PATH, "POST"),
        ("OPTIONS", PATH, "POST"),
        ("POST", PATH + "/task_x", "GET, HEAD"),
        ("POST", "/api/v1/me", "GET, HEAD"),
        ("DELETE", "/api/v1/me/balance", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ):
        answer = await call(gateway.app, method, path)
        assert (answer.status, answer.headers["allow"]) == (405, allow)
        assert set(answer.json) == {"error"}


async def test_every_answer_has_a_fresh_request_id(gateway: Gateway) -> None:
    seen = set()
    for path in ("/nothing", "/api/v1/me", "/healthz", "/v1/x", PATH, "/openapi.json", "/metrics"):
        answer = await call(gateway.app, "GET", path, headers=[("X-Request-Id", "req_mine")])
        request_id = answer.headers["x-request-id"]
        assert re.fullmatch(r"req_[a-z2-7]{26}", request_id)
        seen.add(request_id)
    assert len(seen) == 7


@pytest.mark.parametrize("path", [PATH, "/api/v1/me"])
async def test_defect_is_500_without_detail(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("gateway_core.accounts.authentication.read_bearer", fail)
    method = "POST" if path == PATH else "GET"
    answer = await call(gateway.app, method, path)
    assert answer.status == 500
    assert set(answer.json) == {"error"}
    assert answer.headers["x-request-id"] in answer.json["error"]
    assert b"secret" not in answer.body


@pytest.mark.parametrize("wrong", ["given to the framework", "made by the service"])
async def test_response_that_is_not_as_described_is_in_no_log(
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: str,
) -> None:
    def show(*_: Any) -> Any:
        values: Any = {"is_set": ["sk-hidden"]}
        return values if wrong == "given to the framework" else SecretState(**values)

    monkeypatch.setattr("gateway_apiserver.routers.account.work_out_balance", show)
    answer = await gateway.get("/api/v1/me/balance")
    assert answer.status == 500
    logged = "".join(capsys.readouterr())
    assert "request failed" in logged
    assert "sk-hidden" not in logged


async def test_client_that_leaves_in_the_middle_of_its_body_gets_no_response(
    gateway: Gateway,
) -> None:
    headers = [("Authorization", f"Bearer {gateway.key}"), ("Content-Type", "application/json")]
    answer = await call(gateway.app, "POST", PATH, headers=headers, chunks=[], breaks_off=True)
    assert answer.status == 0


async def test_head_has_the_headers_of_get_and_no_body(gateway: Gateway) -> None:
    created = await gateway.create()
    headers = [("Authorization", f"Bearer {gateway.key}")]
    answer = await call(gateway.app, "HEAD", f"{PATH}/{created.json['id']}", headers=headers)
    assert answer.status == 200
    assert answer.body == b""
    assert int(answer.headers["content-length"]) > 0


async def test_oauth_refuses_in_its_own_form(gateway: Gateway) -> None:
    for path, is_open in (
        ("/oauth/token", True),
        ("/oauth/register", True),
        ("/oauth/revoke", True),
        ("/oauth/authorize", False),
        ("/oauth/none", False),
        ("/.well-known/oauth-protected-resource/mcp", True),
        ("/.well-known/openid-configuration", True),
    ):
        answer = await call(gateway.app, "PUT", path)
        assert answer.status in (404, 405)
        assert answer.json["error"] == "invalid_request"
        assert set(answer.json) == {"error", "error_description"}
        origin = answer.headers.get("access-control-allow-origin")
        assert origin == ("*" if is_open else None), path
        assert answer.headers["x-request-id"].startswith("req_")
