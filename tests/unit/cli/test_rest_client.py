"""The REST client: retries, explained refusals, and the key kept from the media host."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway_cli.rest import client
from gateway_cli.rest.chat import Figures, compute_cost
from gateway_cli.rest.client import RestApi
from gateway_cli.rest.errors import RestError, read_refusal
from gateway_cli.session import EXIT_REFUSED, EXIT_UNAVAILABLE
from gateway_core.api.price import Price
from gateway_core.providers.price_list import Schedule
from gateway_core.providers.price_schedules import render_schedule

PATH = "/api/v1/sim/reference_to_video"
ACCEPTED = {"id": "task_a", "status": "processing"}


class Server:
    """Answers as it is told, in order; the last answer stays."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], Any]] = [(202, {}, ACCEPTED)]
        self.seen: list[web.Request] = []
        self.video: Callable[[web.Request], web.StreamResponse] | None = None

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.seen.append(request)
        status, headers, body = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return web.json_response(body, status=status, headers=headers)


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    told = Server()
    app = web.Application()
    app.router.add_route("*", "/api/{rest:.*}", told.answer)

    async def media(request: web.Request) -> web.StreamResponse:
        told.seen.append(request)
        if request.path.endswith("cut"):
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport is not None
            request.transport.close()
            return response
        if request.path.endswith("gone"):
            return web.Response(status=410)
        return web.Response(body=b"v" * 200_000)

    app.router.add_get("/media/{rest:.*}", media)
    running = TestServer(app)
    await running.start_server()
    yield told, str(running.make_url("")).rstrip("/")
    await running.close()


@pytest.fixture
async def api(server: tuple[Server, str]) -> AsyncIterator[RestApi]:
    async with RestApi(server[1], "sk-secret") as opened:
        yield opened


async def test_create_is_retried_with_its_key_after_passing_errors(
    api: RestApi, server: tuple[Server, str]
) -> None:
    told, _ = server
    told.answers = [
        (503, {"Retry-After": "0"}, {"error": "Try again."}),
        (429, {"Retry-After": "0"}, {"error": "Too fast."}),
        (202, {}, ACCEPTED),
    ]
    assert await api.create(PATH, {"model": "q4"}, "one-key") == ACCEPTED
    assert [request.headers["Idempotency-Key"] for request in told.seen] == ["one-key"] * 3
    assert {request.path for request in told.seen} == {PATH}


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 413, 429])
async def test_final_refusal_is_not_retried(
    api: RestApi, server: tuple[Server, str], status: int
) -> None:
    told, _ = server
    headers = {"x-should-retry": "false"} if status == 429 else {}
    told.answers = [(status, headers, {"error": "No."})]
    with pytest.raises(RestError, match="No") as refusal:
        await api.create(PATH, {}, "key")
    assert refusal.value.exit_code == EXIT_REFUSED
    assert len(told.seen) == 1


async def test_persistent_errors_end_the_retries(api: RestApi, server: tuple[Server, str]) -> None:
    told, _ = server
    told.answers = [
        (500, {"Retry-After": "0", "X-Request-Id": "req_1"}, {"error": "Something went wrong."})
    ]
    with pytest.raises(RestError, match="req_1") as refusal:
        await api.get(f"{PATH}/task_a")
    assert refusal.value.exit_code == EXIT_UNAVAILABLE
    assert len(told.seen) == client.ATTEMPTS


@pytest.mark.parametrize("body", [{"status": "processing"}, [], "text", None])
async def test_response_without_an_id_is_refused(
    api: RestApi, server: tuple[Server, str], body: Any
) -> None:
    server[0].answers = [(200, {}, body)]
    with pytest.raises(RestError, match="no answer of this API"):
        await api.get(f"{PATH}/task_a")


async def test_unreachable_api_names_the_variable_to_check(
    unused_tcp_port_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    base = f"http://127.0.0.1:{unused_tcp_port_of}"
    async with RestApi(base, "sk-secret") as api:
        with pytest.raises(RestError, match="GATEWAY_BASE_URL") as refusal:
            await api.get(f"{PATH}/task_a")
    assert "sk-secret" not in str(refusal.value)
    assert refusal.value.exit_code == EXIT_UNAVAILABLE


@pytest.fixture
def unused_tcp_port_of() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def test_video_is_fetched_whole_and_without_the_key(
    api: RestApi, server: tuple[Server, str], tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    path = tmp_path / "task_a-1.mp4"
    url = f"{server[1]}/media/ok?token=t"
    await api.download(url, path, lambda here, total: seen.append((here, total)))
    assert path.read_bytes() == b"v" * 200_000
    assert seen[-1] == (200_000, 200_000)
    assert "Authorization" not in server[0].seen[-1].headers
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["cut", "gone"])
async def test_incomplete_video_leaves_no_file(
    api: RestApi, server: tuple[Server, str], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "task_a-1.mp4"
    path.write_bytes(b"of an earlier time")
    with pytest.raises(RestError) as refusal:
        await api.download(f"{server[1]}/media/{name}?token=secret", path, lambda *_: None)
    assert "secret" not in str(refusal.value)
    assert path.read_bytes() == b"of an earlier time"
    assert list(tmp_path.iterdir()) == [path]


async def test_unwritable_folder_is_reported(
    api: RestApi, server: tuple[Server, str], tmp_path: Path
) -> None:
    with pytest.raises(RestError, match="cannot be written"):
        await api.download(f"{server[1]}/media/ok", tmp_path / "none" / "a.mp4", lambda *_: None)


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {}, ["GATEWAY_API_KEY"]),
        (402, {}, ["gatewayctl fund"]),
        (403, {}, ["management", "viewer", "keys describe"]),
        (429, {"Retry-After": "7"}, ["minute", "7"]),
        (429, {"x-should-retry": "false"}, ["limit", "keys describe", "keys limit set"]),
    ],
)
def test_each_refusal_says_what_to_do(
    status: int, headers: dict[str, str], words: list[str]
) -> None:
    text = str(read_refusal(status, headers, {"error": "No."}))
    assert text.startswith(f"{status}: No.")
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    "body", [{"error": "Not found."}, {"error": {"message": "Not found: /v1 …"}}, "<html>", None]
)
def test_unknown_path_is_no_unknown_id(body: Any) -> None:
    text = str(read_refusal(404, {}, body))
    assert "GATEWAY_BASE_URL" in text
    assert "another account" not in text
    assert "another account" in str(read_refusal(404, {}, {"error": "Task not found."}))


def test_conflict_of_a_key_and_of_a_state_are_told_apart() -> None:
    used = "Idempotency-Key was already used with different input"
    assert "first used with" in str(read_refusal(409, {}, {"error": used}))
    ended = "The task has already completed."
    assert str(read_refusal(409, {}, {"error": ended})).strip() == f"409: {ended}"


def test_wrong_fields_are_named() -> None:
    body = {"error": "Invalid.", "errors": {"prompt": ["is blank"], "colour": ["is unknown"]}}
    text = str(read_refusal(400, {}, body))
    assert "prompt: is blank" in text
    assert "colour: is unknown" in text


@pytest.mark.parametrize("body", [None, [], "<html>", {"detail": "x"}])
def test_response_of_another_server_is_no_crash(body: Any) -> None:
    assert str(read_refusal(418, {}, body)).startswith("418")


def test_figures_of_a_chat_say_one_token_or_several() -> None:
    figures = Figures(0.0, 0.0, {"prompt_tokens": 1, "completion_tokens": 3})
    assert figures.describe(None).startswith("1 token in, 3 out, ")
    figures.usage = {"prompt_tokens": 2, "completion_tokens": 3}
    assert figures.describe(None).startswith("2 tokens in, 3 out, ")


def test_rate_of_a_chat_is_left_out_where_the_answer_came_at_once() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 30}
    now = time.monotonic()
    assert "tokens a second" not in Figures(now - 1, now, usage).describe(None)
    assert " 15 tokens a second" in Figures(now - 3, now - 2, usage).describe(None)


def test_cost_of_a_chat_follows_kinds_and_tiers_of_the_price_list() -> None:
    tier = {"abovePromptTokens": 1000, "inputPerMillionMicros": 4_000_000}
    price = Price.model_validate(
        {
            "perCallMicros": 7,
            "inputPerMillionMicros": 2_000_000,
            "cachedPerMillionMicros": 1_000_000,
            "outputPerMillionMicros": 10_000_000,
            "tiers": [tier],
        }
    )
    entry = Schedule("chat", "chat", "m", "available", price, ())
    listed = render_schedule(entry).model_dump()
    details = {"prompt_tokens_details": {"cached_tokens": 100}}
    for prompt, micros in ((1000, 7 + 900 * 2 + 100 + 30), (1001, 7 + 901 * 4 + 100 + 30)):
        usage = {"prompt_tokens": prompt, "completion_tokens": 3, **details}
        assert compute_cost(usage, listed) == micros
    assert compute_cost({}, listed) is None
