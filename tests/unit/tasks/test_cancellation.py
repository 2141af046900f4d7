"""`POST …/{task_id}/cancel` (I2, I3): once, whatever repeats it, and never after another end."""

from typing import Any

import pytest

from gateway_core.api.ids import id_to_name
from gateway_core.tasks.archive import archive_task
from tests.unit.apiserver.gateway import COMPLETED, FAILED, PATH, Answer, Gateway, call, random_id

CANCELLED = {
    **FAILED,
    "failure": {"code": "cancelled", "message": "The task was cancelled."},
    "completionTime": "2999-01-01T00:00:00Z",
}


async def make(gateway: Gateway) -> str:
    task_id: str = (await gateway.create()).json["id"]
    return task_id


async def cancel(
    gateway: Gateway, task_id: str, content: bytes = b"", *, key: str = "", path: str = PATH
) -> Answer:
    headers = [("Authorization", f"Bearer {key or gateway.key}")]
    if content:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
    return await call(
        gateway.app, "POST", f"{path}/{task_id}/cancel", headers=headers, content=content
    )


@pytest.mark.parametrize("content", [b"", b"{}"])
async def test_running_task_is_cancelled_once(gateway: Gateway, content: bytes) -> None:
    task_id = await make(gateway)
    for _ in range(2):
        answer = await cancel(gateway, task_id, content)
        assert (answer.status, answer.json) == (200, {"id": task_id, "status": "processing"})
    assert gateway.task_object(task_id)["spec"]["desiredState"] == "Cancelled"
    writes = [call for call in gateway.kube.calls if call[0] == "patch"]
    assert len(writes) == 1


async def test_cancelled_task_is_shown_as_failed(gateway: Gateway) -> None:
    task_id = await make(gateway)
    await cancel(gateway, task_id)
    gateway.end_task(task_id, CANCELLED)
    expected = {"id": task_id, "status": "failed", "error": "The task was cancelled."}
    assert (await cancel(gateway, task_id)).json == expected
    await archive_task(gateway.store, gateway.task_object(task_id))
    gateway.kube.remove("gatewaytasks", id_to_name(task_id))
    answer = await cancel(gateway, task_id)
    assert (answer.status, answer.json) == (200, expected)


@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("status", [COMPLETED, FAILED])
async def test_task_that_ended_otherwise_is_409_and_stays(
    gateway: Gateway, status: dict[str, Any], is_archived: bool
) -> None:
    task_id = await make(gateway)
    gateway.end_task(task_id, {**status, "completionTime": CANCELLED["completionTime"]})
    before = await gateway.poll(task_id)
    if is_archived:
        await archive_task(gateway.store, gateway.task_object(task_id))
        gateway.kube.remove("gatewaytasks", id_to_name(task_id))
    answer = await cancel(gateway, task_id)
    assert answer.status == 409
    assert answer.json["error"] == f"The task has already {status['phase'].lower()}."
    assert (await gateway.poll(task_id)).body == before.body


async def test_task_that_ends_while_it_is_being_cancelled_is_409(gateway: Gateway) -> None:
    task_id = await make(gateway)
    patch = gateway.kube.patch

    async def end_first(plural: str, obj: dict[str, Any], change: dict[str, Any]) -> Any:
        gateway.kube.patch = patch  # type: ignore[method-assign]
        gateway.end_task(task_id, COMPLETED)
        return await patch(plural, obj, change)

    gateway.kube.patch = end_first  # type: ignore[assignment, method-assign]
    assert (await cancel(gateway, task_id)).status == 409
    assert "desiredState" not in gateway.task_object(task_id)["spec"]


async def test_foreign_misplaced_and_unknown_tasks_are_one_404(gateway: Gateway) -> None:
    task_id = await make(gateway)
    unknown = await cancel(gateway, random_id(gateway.mint))
    foreign = await cancel(gateway, task_id, key=gateway.other_key)
    misplaced = await cancel(gateway, task_id, path="/api/v1/other/reference_to_video")
    assert {each.status for each in (unknown, foreign, misplaced)} == {404}
    assert unknown.body == foreign.body == misplaced.body
    assert "desiredState" not in gateway.task_object(task_id)["spec"]


async def test_viewer_may_not_cancel(gateway: Gateway) -> None:
    task_id = await make(gateway)
    gateway.put_user("vera", {"demo": "viewer"})
    answer = await cancel(gateway, task_id, key=gateway.put_key("demo", createdBy="vera"))
    assert answer.status == 403
    assert "desiredState" not in gateway.task_object(task_id)["spec"]


@pytest.mark.parametrize(
    ("content", "status"), [(b'{"why": "no"}', 400), (b"[]", 400), (b"{", 400), (b"x" * 70, 400)]
)
async def test_body_is_empty_or_an_empty_object(
    gateway: Gateway, content: bytes, status: int
) -> None:
    task_id = await make(gateway)
    assert (await cancel(gateway, task_id, content)).status == status
    assert "desiredState" not in gateway.task_object(task_id)["spec"]


@pytest.mark.parametrize(("chunks", "status"), [([b""], 200), ([b"", b""], 200), ([b"{}"], 415)])
async def test_body_in_chunks_needs_a_type_unless_it_is_empty(
    gateway: Gateway, chunks: list[bytes], status: int
) -> None:
    path = f"{PATH}/{await make(gateway)}/cancel"
    headers = [("Authorization", f"Bearer {gateway.key}"), ("Transfer-Encoding", "chunked")]
    answer = await call(gateway.app, "POST", path, headers=headers, chunks=chunks)
    assert answer.status == status


@pytest.mark.parametrize("path", ["/api/v1/no/thing", "/api/v1/management/keys"])
async def test_path_that_is_not_served_is_404_for_strangers(gateway: Gateway, path: str) -> None:
    answer = await call(gateway.app, "POST", f"{path}/task_a/cancel")
    assert answer.status == 404
