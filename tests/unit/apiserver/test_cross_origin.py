"""Calls from pages of web browsers (contract §0.11)."""

import pytest

from tests.unit.apiserver.gateway import Answer, Gateway, call
from tests.unit.apiserver.llm_gateway import CHAT, answer, serve, stream

PAGE = "https://app.example.com"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}
PATHS = [CHAT, "/v1/responses", "/v1beta/models/m:generateContent", "/api/v1/files"]


def list_cors(found: Answer) -> set[str]:
    return {name for name in found.headers if name.startswith("access-control-")}


async def ask(gateway: Gateway, method: str, path: str, origin: str = PAGE) -> Answer:
    headers = [("origin", origin)]
    if method == "OPTIONS":
        headers += PREFLIGHT.items()
    return await call(gateway.app, method, path, headers=headers)


@pytest.fixture
def open_gateway() -> Gateway:
    return Gateway(cors_allowed_origins=(PAGE, "http://localhost:5173"))


@pytest.mark.parametrize("path", PATHS)
async def test_preflight_needs_no_credential(open_gateway: Gateway, path: str) -> None:
    found = await ask(open_gateway, "OPTIONS", path)
    assert (found.status, found.body) == (204, b"")
    assert found.headers["access-control-allow-origin"] == PAGE
    assert "POST" in found.headers["access-control-allow-methods"]
    asked = PREFLIGHT["access-control-request-headers"]
    assert found.headers["access-control-allow-headers"] == asked
    assert found.headers["vary"] == "Origin"
    assert found.headers["x-request-id"].startswith("req_")
    assert "access-control-allow-credentials" not in found.headers


@pytest.mark.parametrize("path", PATHS)
async def test_no_origin_is_allowed_by_default(gateway: Gateway, path: str) -> None:
    found = await ask(gateway, "OPTIONS", path)
    assert found.status == 405
    assert not list_cors(found)
    assert "vary" not in found.headers


@pytest.mark.parametrize("origin", ["https://evil.example.com", f"{PAGE}.evil.com", "null", ""])
async def test_other_origins_are_served_as_without_the_setting(
    open_gateway: Gateway, origin: str
) -> None:
    found = await ask(open_gateway, "OPTIONS", CHAT, origin)
    assert (found.status, list_cors(found)) == (405, set())
    # caches must not give it to an allowed page
    assert found.headers["vary"] == "Origin"


@pytest.mark.parametrize("path", ["/docs", "/console", "/healthz", "/oauth/authorize"])
async def test_pages_of_the_gateway_are_read_by_no_origin(open_gateway: Gateway, path: str) -> None:
    found = await ask(open_gateway, "GET", path)
    assert not list_cors(found)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/none", 404),
        ("GET", "/v1/models/none", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models", 200),
        ("HEAD", "/v1/models", 200),
    ],
)
async def test_allowed_page_reads_every_status(
    open_gateway: Gateway, method: str, path: str, status: int
) -> None:
    headers = [("origin", PAGE), ("authorization", f"Bearer {open_gateway.key}")]
    found = await call(open_gateway.app, method, path, headers=headers)
    assert found.status == status
    assert found.headers["access-control-allow-origin"] == PAGE
    # one header, for clients that read the last of several
    assert found.headers["vary"].startswith("Origin")


async def test_allowed_page_reads_that_its_body_is_too_large(open_gateway: Gateway) -> None:
    body = {"model": "m", "messages": [], "x": "a" * 5_000_000}
    found = await open_gateway.create(body, path=CHAT, headers=[("origin", PAGE)])
    assert found.status == 413
    assert found.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize(("is_stream", "status"), [(False, 200), (True, 200), (None, 400)])
async def test_allowed_page_reads_answers_streams_and_errors(
    is_stream: bool | None, status: int
) -> None:
    script = stream("Hello") if is_stream else answer
    async with serve(script, cors_allowed_origins=(PAGE,)) as (gateway, _):
        fields = {"model": 5} if is_stream is None else {"stream": is_stream}
        found = await gateway.chat(headers={"origin": PAGE}, **fields)
        refused = await ask(gateway, "POST", CHAT)
    assert (found.status, refused.status) == (status, 401)
    for each in (found, refused):
        assert each.headers["access-control-allow-origin"] == PAGE
        assert each.headers["access-control-expose-headers"] == "*"
        assert each.headers["vary"] == "Origin"
