"""Commands with an API key take the id of an object, or its name as kubectl shows it."""

from typing import Any

import pytest
from typer.testing import CliRunner

from gateway_cli.__main__ import app
from gateway_cli.rest.client import RestApi
from gateway_core.api.ids import id_to_name, name_to_id, read_id
from tests.servers.storageserver import KEY

TASK = ("--service", "sim")
DOCUMENT: dict[str, Any] = {"id": "x", "status": "completed", "videos": []}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that commands have called."""
    paths: list[str] = []

    async def answer(_: RestApi, path: str, *__: Any, **___: Any) -> dict[str, Any]:
        paths.append(path)
        return DOCUMENT

    for method in ("get", "post", "delete"):
        monkeypatch.setattr(RestApi, method, answer)
    monkeypatch.setenv("GATEWAY_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("GATEWAY_API_KEY", KEY)
    return paths


@pytest.mark.parametrize("typed", ["{prefix}_abc-d_e", "{prefix}-abc-d_e"])
@pytest.mark.parametrize(
    ("prefix", "path", "command"),
    [
        ("task", "/api/v1/sim/reference_to_video/task_abc-d_e", ("tasks", "get", *TASK)),
        ("task", "/api/v1/sim/reference_to_video/task_abc-d_e", ("tasks", "wait", *TASK)),
        ("task", "/api/v1/sim/reference_to_video/task_abc-d_e/cancel", ("tasks", "abort", *TASK)),
        ("batch", "/v1/batches/batch_abc-d_e", ("batches", "get")),
        ("batch", "/v1/batches/batch_abc-d_e", ("batches", "wait")),
        ("batch", "/v1/batches/batch_abc-d_e/cancel", ("batches", "cancel")),
        ("file", "/v1/files/file-abc-d_e", ("files", "get")),
        ("file", "/v1/files/file-abc-d_e", ("files", "delete", "--yes")),
        ("upload", "/v1/uploads/upload_abc-d_e/cancel", ("uploads", "cancel")),
    ],
)
def test_id_and_name_are_the_same_object(
    asked: list[str], prefix: str, path: str, command: tuple[str, ...], typed: str
) -> None:
    noun, verb, *options = command
    words = [noun, verb, typed.format(prefix=prefix), *options, "-o", "json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (result.output, result.exception)
    assert asked == [path]


@pytest.mark.parametrize("text", ["", "abc", "key-abc", "task", "Task-abc", "../x"])
def test_other_text_stays(text: str) -> None:
    assert read_id("task", text) == text


def test_id_is_the_inverse_of_the_name() -> None:
    for wire_id in ("task_abc", "batch_abc", "upload_abc", "file-abc"):
        name = id_to_name(wire_id)
        assert name_to_id(name) == read_id(name.partition("-")[0], name) == wire_id


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (("tasks", "abort", "task_a", *TASK), "failed", "task task_a cancelled\n"),
        (("tasks", "abort", "task_a", *TASK), "processing", "it fails once its provider has"),
        (("batches", "cancel", "batch_a"), "cancelled", "batch batch_a cancelled\n"),
        (("batches", "cancel", "batch_a"), "cancelling", "cancelled: its running requests end"),
    ],
)
def test_cancellation_says_what_comes_of_it(
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    status: str,
    text: str,
) -> None:
    monkeypatch.setitem(DOCUMENT, "status", status)
    result = CliRunner().invoke(app, [*command])
    assert result.exit_code == 0, (result.output, result.exception)
    assert text in result.output
