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


CHAT = "POST /v1/chat/completions, POST /v1/responses"
SERVED = (
    "It serves /v1/batches, /v1/chat/completions, /v1/files, /v1/models, /v1/moderations,"
    " /v1/responses, /v1/uploads. GET /openapi.json describes them."
)
MEDIA = "POST /api/v1/{service}/{action}. GET /api/v1/price_schedules lists the models."
NOT_KEPT = "responses are not kept"
UNSERVED = [
    ("POST", "/v1/completions", CHAT),
    ("POST", "/completions", CHAT),
    ("POST", "/v1/messages", CHAT),
    ("POST", "/v1/messages/count_tokens", CHAT),
    ("POST", "/v1/complete", CHAT),
    ("POST", "/v1/assistants", CHAT),
    ("POST", "/v1/threads/x/runs", CHAT),
    ("POST", "/v1/embeddings", SERVED),
    ("POST", "/openai/v1/embeddings", "does not serve /openai/v1/embeddings."),
    ("POST", "/api/v1/embeddings", "does not serve /api/v1/embeddings."),
    ("POST", "/v1/audio/transcriptions", SERVED),
    ("POST", "/v1", SERVED),
    ("GET", "/v1/", SERVED),
    ("GET", "/v1beta", "models/{model}:generateContent"),
    ("POST", "/v1beta/models/chat-1", "the path: :generateContent or :streamGenerateContent."),
    ("POST", "/v1beta/models/chat-1:embedContent", "models have generateContent and stream"),
    ("POST", "/v1/audio/speech", SERVED),
    ("GET", "/v1/vector_stores", SERVED),
    ("GET", "/v1/nothing-like-this", SERVED),
    ("POST", "/v1/images/generations", MEDIA),
    ("POST", "/v1/videos", MEDIA),
    ("GET", "/v1/organization/usage/completions", "GET /api/v1/me/balance"),
    ("GET", "/v1/responses/resp_1", NOT_KEPT),
    ("DELETE", "/v1/responses/resp_1", NOT_KEPT),
    ("POST", "/v1/responses/resp_1/cancel", NOT_KEPT),
    ("GET", "/v1/responses/resp_1/input_items", NOT_KEPT),
    ("POST", "/v1/responses/compact", SERVED),
    ("GET", "/v1/chat/completions", "chat completions are not kept"),
    ("GET", "/v1/chat/completions/chatcmpl-1/messages", "chat completions are not kept"),
    ("GET", "/v1/uploads", "cannot be read or listed"),
    ("GET", "/v1/uploads/upload_1", "cannot be read or listed"),
    ("DELETE", "/v1/uploads/upload_1", "POST /v1/uploads/{upload_id}/cancel"),
    ("POST", "/v1beta/cachedContents", "inlineData"),
    ("POST", "/upload/v1beta/files", "inlineData"),
    ("POST", "/v1beta/interactions", "models/{model}:generateContent"),
    ("GET", "/v1beta/tunedModels", "models/{model}:generateContent"),
    ("POST", "/v1/responses/responses", "/v1, the path is /v1/responses."),
    ("POST", "/v1/chat/completions/chat/completions", "the path is /v1/chat/completions."),
]


@pytest.mark.parametrize(("method", "path", "text"), UNSERVED)
async def test_path_of_another_service_says_what_is_served_instead(
    gateway: Gateway, method: str, path: str, text: str
) -> None:
    answer = await call(gateway.app, method, path)
    assert answer.status == 404
    error = answer.json["error"]
    if path.startswith("/v1beta"):
        assert error["status"] == "NOT_FOUND"
    elif path.startswith("/v1"):
        assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")
    message = error["message"] if isinstance(error, dict) else error
    assert text in message


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("DELETE", f"{PATH}/task_x", f"POST {PATH}/task_x/cancel cancels it"),
        ("DELETE", "/v1/batches/batch_1", "POST /v1/batches/batch_1/cancel cancels it"),
        ("GET", PATH, "GET /api/v1/tasks lists the tasks"),
        ("POST", "/api/v1/tasks", "POST /api/v1/{service}/{action} creates a task"),
        ("PUT", "/v1/files/file-1", "files cannot be changed"),
        ("PUT", f"{PATH}/task_x", ""),
        ("PUT", "/v1/models", ""),
        ("DELETE", "/v1/models/chat-1", ""),
        ("DELETE", "/v1/files", ""),
    ],
)
async def test_method_that_is_not_served_names_what_does_its_work(
    gateway: Gateway, method: str, path: str, hint: str
) -> None:
    answer = await call(gateway.app, method, path)
    assert answer.status == 405
    error = answer.json["error"]
    message = error["message"] if isinstance(error, dict) else error
    start = f"Method not allowed: this path allows {answer.headers['allow']}"
    assert message.startswith(f"{start}; {hint}" if hint else f"{start}.")


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
        "/a/b/c",
        "/chat/<b>completions",
        "/chat/completions/" + "x" * 300,
        "/api/v1/no/thing",
        "/api/v1/me/x",
        "/api/v1/é/a",
    ],
)
async def test_path_that_is_like_none_is_not_found(gateway: Gateway, path: str) -> None:
    answer = await call(gateway.app, "POST", path)
    error = answer.json["error"]
    assert answer.status == 404
    assert (error["message"] if isinstance(error, dict) else error) == "Not found."
