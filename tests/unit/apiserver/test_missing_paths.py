"""Paths that are not served name the one that was meant, in the form of its dialect."""

import pytest

from tests.unit.apiserver.gateway import PATH, Gateway, call

MISSING = [
    ("POST", "/chat/completions", "/v1 is missing, the path is /v1/chat/completions"),
    ("POST", "/responses", "/v1 is missing, the path is /v1/responses"),
    ("POST", "/moderations", "/v1 is missing, the path is /v1/moderations"),
    ("GET", "/models", "/v1 is missing, the path is /v1/models"),
    ("GET", "/files/file-x", "/v1 is missing, the path is /v1/files/file-x"),
    ("POST", "/batches", "/v1 is missing, the path is /v1/batches"),
    ("POST", "/v1/v1/chat/completions", "/v1 is there twice, the path is /v1/chat/completions"),
    ("POST", "//v1/chat/completions", "the path is /v1/chat/completions"),
    ("POST", "/v1/chat/completions/", "the path is /v1/chat/completions"),
    ("POST", "/V1/chat/completions", "the path is /v1/chat/completions"),
    ("POST", "/openai/v1/chat/completions", "the path is /v1/chat/completions"),
    ("POST", "/api/v1/chat/completions", "the path is /v1/chat/completions"),
    ("POST", "/v1beta/openai/chat/completions", "the path is /v1/chat/completions"),
    ("GET", "/api/tasks", "/v1 is missing, the path is /api/v1/tasks"),
    ("GET", "/v1/tasks", "/api is missing, the path is /api/v1/tasks"),
    ("GET", "/tasks", "/api/v1 is missing, the path is /api/v1/tasks"),
    ("GET", "/v1/api/v1/tasks", "the path is /api/v1/tasks"),
    ("POST", f"/api/v1{PATH}", f"/api/v1 is there twice, the path is {PATH}"),
    ("POST", "/sim/reference_to_video", f"/api/v1 is missing, the path is {PATH}"),
    ("GET", "/v1/sim/reference_to_video/task_x", f"/api is missing, the path is {PATH}/task_x"),
    ("POST", f"{PATH}/task_x/cancel/", f"the path is {PATH}/task_x/cancel"),
    ("GET", "/api/me/balance", "/v1 is missing, the path is /api/v1/me/balance"),
    (
        "POST",
        "/v1beta/v1beta/models/chat-1:generateContent",
        "/v1beta is there twice, the path is /v1beta/models/chat-1:generateContent",
    ),
]


@pytest.mark.parametrize(("method", "path", "text"), MISSING)
async def test_wrong_base_url_names_the_path_that_was_meant(
    gateway: Gateway, method: str, path: str, text: str
) -> None:
    answer = await call(gateway.app, method, path)
    assert answer.status == 404
    error = answer.json["error"]
    meant = text.rpartition(" ")[2]
    assert isinstance(error, dict) == meant.startswith("/v1")
    assert (error["message"] if isinstance(error, dict) else error) == f"Not found: {text}."
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/simm/reference_to_video",
        "/api/v1/sim/reference-to-video",
        "/api/v1/sim/image_to_video",
        "/api/v1/Sim/Reference_To_Video",
    ],
)
async def test_wrong_service_or_action_names_the_nearest(gateway: Gateway, path: str) -> None:
    answer = await call(gateway.app, "POST", path)
    given = path.removeprefix("/api/v1/")
    assert (answer.status, answer.json["error"]) == (
        404,
        f"Not found: no model serves {given}. Did you mean sim/reference_to_video?"
        " GET /api/v1/price_schedules lists the models.",
    )


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/task_x"), ("POST", "/task_x/cancel"), ("GET", "/")]
)
async def test_task_below_the_list_names_the_place_of_a_task(
    gateway: Gateway, method: str, path: str
) -> None:
    answer = await call(gateway.app, method, f"/api/v1/tasks{path}")
    assert answer.status == 404
    if path == "/":
        assert answer.json["error"] == "Not found: the path is /api/v1/tasks."
    else:
        assert "/api/v1/{service}/{action}/{task_id}" in answer.json["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/v1/assistants",
        "/a/b/c",
        "/chat/<b>completions",
        "/chat/completions/" + "x" * 300,
        "/api/v1/no/thing",
        "/api/v1/me/x",
        "/api/v1/é/a",
        "/v1",
    ],
)
async def test_path_that_is_like_none_is_not_found(gateway: Gateway, path: str) -> None:
    answer = await call(gateway.app, "POST", path)
    error = answer.json["error"]
    assert answer.status == 404
    assert (error["message"] if isinstance(error, dict) else error) == "Not found."
