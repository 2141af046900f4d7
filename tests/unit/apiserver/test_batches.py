"""`/v1/batches` on fakes: made of a File, listed, shown and cancelled; whose they are."""

import asyncio
import dataclasses
import weakref
from typing import Any

import pytest

from gateway_apiserver.surfaces.batches import service
from gateway_apiserver.surfaces.batches.models import Batch
from gateway_apiserver.surfaces.batches.rendering import render_batch
from gateway_core.api.ids import SEQUENCE_ANNOTATION, id_to_name
from gateway_core.api.resource import Object
from gateway_core.kube.client import Page
from gateway_core.kube.errors import WriteOutcomeUnknown
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import Answer, Gateway, call

URL = "/v1/batches"
KEYS = [
    "id",
    "object",
    "endpoint",
    "model",
    "errors",
    "input_file_id",
    "completion_window",
    "status",
    "output_file_id",
    "error_file_id",
    "created_at",
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
    "request_counts",
    "usage",
    "metadata",
]
"""The golden shape, in its order (annex B.2)."""


class Scene(Gateway):
    """The gateway with a File of purpose batch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.number = 0
        self.file = self.put_file()

    def put_file(self, account: str = "demo", purpose: str = "batch", **parts: Any) -> str:
        self.number += 1
        file_id = self.mint.mint_ordered("file", account, 1_700_000_000_000 + self.number)
        segment = {"key": f"files/{account}/{file_id}", "bytes": 5, "sha256": "0" * 64}
        request = {
            "accountName": account,
            "purpose": purpose,
            "filename": "a.jsonl",
            "bytes": 5,
            "segments": [segment],
            **parts.pop("request", {}),
        }
        metadata = {"name": file_id, **parts.pop("metadata", {})}
        self.kube.put("gatewayfiles", {"metadata": metadata, "spec": {"request": request}})
        return file_id

    async def make(self, content: Any = None, **sent: Any) -> Answer:
        return await self.create(self.body() if content is None else content, path=URL, **sent)

    def body(self, **changes: Any) -> dict[str, Any]:
        base: dict[str, Any] = {
            "input_file_id": self.file,
            "endpoint": "/v1/moderations",
            "completion_window": "24h",
        }
        return {name: value for name, value in {**base, **changes}.items() if value is not ...}

    async def made(self, **changes: Any) -> str:
        answer = await self.make(self.body(**changes))
        assert answer.status == 200, answer.body
        return str(answer.json["id"])

    def object(self, batch_id: str) -> dict[str, Any]:
        found = self.kube.find("gatewaybatches", id_to_name(batch_id))
        assert found is not None
        return dict(found)

    def set_status(self, batch_id: str, **status: Any) -> None:
        self.kube.put("gatewaybatches", {**self.object(batch_id), "status": status})

    async def cancel(self, batch_id: str, content: bytes = b"", **sent: Any) -> Answer:
        headers = [("Authorization", f"Bearer {sent.get('key') or self.key}")]
        if content:
            headers += [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(content))),
            ]
        path = f"{URL}/{batch_id}/cancel"
        return await call(self.app, "POST", path, headers=headers, content=content)


def is_error(answer: Answer, status: int, code: str, param: str | None = None) -> bool:
    error = answer.json["error"]
    return (answer.status, error["code"], error["param"]) == (status, code, param)


async def test_new_batch_has_every_key_and_the_segments_of_its_file() -> None:
    scene = Scene()
    answer = await scene.make(scene.body(metadata={"team": "a"}, extra=1))
    assert answer.status == 200
    batch = answer.json
    assert list(batch) == KEYS
    assert (batch["status"], batch["object"]) == ("validating", "batch")
    assert batch["expires_at"] == batch["created_at"] + 86_400
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert batch["metadata"] == {"team": "a"}
    assert answer.headers["x-ratelimit-remaining-rpm"] == "299"
    obj = scene.object(batch["id"])
    request = obj["spec"]["request"]
    file = scene.kube.find("gatewayfiles", scene.file)
    assert file is not None
    assert request["segments"] == file["spec"]["request"]["segments"]
    assert request["keyName"] == "key-" + scene.key[3:11]
    assert obj["metadata"]["labels"]["modelgateway.dev/account"] == "demo"
    assert "modelgateway.dev/shard" in obj["metadata"]["labels"]
    assert obj["metadata"]["finalizers"] == ["modelgateway.dev/batch-run"]
    shown = await scene.get(f"{URL}/{batch['id']}")
    assert (shown.status, shown.json) == (200, batch)
    scene.kube.away = True
    away = await scene.get(f"{URL}/{batch['id']}")
    assert is_error(away, 503, "service_unavailable")


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"input_file_id": ...}, "missing_required_parameter", "input_file_id"),
        ({"input_file_id": 5}, "invalid_type", "input_file_id"),
        ({"endpoint": ...}, "missing_required_parameter", "endpoint"),
        ({"endpoint": "/v1/chat/completions"}, "invalid_value", "endpoint"),
        ({"completion_window": ...}, "missing_required_parameter", "completion_window"),
        ({"completion_window": "48h"}, "invalid_value", "completion_window"),
        ({"metadata": []}, "invalid_type", "metadata"),
        ({"metadata": {"a": 1}}, "invalid_type", "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "invalid_value", "metadata"),
        ({"metadata": {"k": "v" * 513}}, "invalid_value", "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {str(n): "é" * 512 for n in range(10)}}, "invalid_value", "metadata"),
        ({"output_expires_after": 5}, "invalid_type", "output_expires_after"),
        (
            {"output_expires_after": {"anchor": "now", "seconds": 3600}},
            "invalid_value",
            "output_expires_after.anchor",
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
            "invalid_value",
            "output_expires_after.seconds",
        ),
    ],
)
async def test_bad_body_is_refused_by_its_field(
    changes: dict[str, Any], code: str, param: str
) -> None:
    scene = Scene()
    assert is_error(await scene.make(scene.body(**changes)), 400, code, param)
    assert scene.kube.list_objects("gatewaybatches") == []


async def test_refusal_of_a_single_choice_names_it() -> None:
    scene = Scene()
    answer = await scene.make(scene.body(completion_window="48h"))
    message = answer.json["error"]["message"]
    assert message == "Invalid value for 'completion_window': it must be '24h'."


async def test_largest_metadata_and_longest_life_are_taken() -> None:
    scene = Scene()
    metadata = {"k" * 63 + chr(97 + n): "v" * 512 for n in range(16)}
    life = {"anchor": "created_at", "seconds": 2_592_000}
    batch_id = await scene.made(metadata=metadata, output_expires_after=life)
    request = scene.object(batch_id)["spec"]["request"]
    assert request["metadata"] == metadata
    assert request["outputExpiresAfterSeconds"] == 2_592_000


async def test_batch_precedes_in_lists_what_is_made_after_its_file_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A removal that begins meanwhile finds it: the File waits for Batches of this place."""
    scene = Scene()
    get, versions = scene.kube.get, list[int]()

    async def read_and_be_overtaken(plural: str, name: str) -> Object:
        obj = await get(plural, name)
        if plural == "gatewayfiles":
            versions.append(int((await scene.kube.list_page(plural)).resource_version))
            scene.put_file()
        return obj

    monkeypatch.setattr(scene.kube, "get", read_and_be_overtaken)
    batch = scene.object(await scene.made())
    assert int(batch["metadata"]["annotations"][SEQUENCE_ANNOTATION]) <= versions[0]


async def test_file_has_to_be_there_own_and_of_purpose_batch() -> None:
    scene = Scene()
    other = scene.put_file("guest")
    gone = scene.put_file(request={"expirationTime": "2020-01-01T00:00:00Z"})
    deleted = scene.put_file(metadata={"deletionTimestamp": "2026-11-21T00:00:00Z"})
    temporary = scene.put_file(purpose="temporary")
    for file_id in ("file-nonsense", other, gone, deleted, temporary):
        answer = await scene.make(scene.body(input_file_id=file_id))
        assert is_error(answer, 404, "file_not_found", "input_file_id"), file_id
    for purpose in ("user_data", "batch_output"):
        file_id = scene.put_file(purpose=purpose)
        answer = await scene.make(scene.body(input_file_id=file_id))
        assert is_error(answer, 400, "invalid_file_purpose", "input_file_id")


async def test_idempotency_key_names_one_batch_also_after_its_file_is_gone() -> None:
    scene = Scene()
    scene.kube.order_faults("create", Fault(WriteOutcomeUnknown("lost"), applied=True))
    answers = await asyncio.gather(*(scene.make(idempotency_key="k") for _ in range(5)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert len(scene.kube.list_objects("gatewaybatches")) == 1
    first = answers[0]
    scene.kube.remove("gatewayfiles", scene.file)
    again = await scene.make(scene.body(metadata=None), idempotency_key="k")
    assert (again.status, again.json) == (200, first.json)
    other = await scene.make(scene.body(metadata={"a": "b"}), idempotency_key="k")
    assert is_error(other, 409, "idempotency_conflict")
    assert other.headers["x-should-retry"] == "false"
    guests = scene.put_file("guest")
    theirs = await scene.make(
        scene.body(input_file_id=guests), idempotency_key="k", key=scene.other_key
    )
    assert theirs.json["id"] != first.json["id"]
    assert is_error(await scene.make(idempotency_key=" "), 400, "invalid_value")


async def test_lists_are_of_the_account_newest_first_and_page_on() -> None:
    scene = Scene()
    made = [await scene.made() for _ in range(5)]
    await scene.make(scene.body(input_file_id=scene.put_file("guest")), key=scene.other_key)
    whole = (await scene.get(URL)).json
    assert [batch["id"] for batch in whole["data"]] == made[::-1]
    assert (whole["object"], whole["has_more"]) == ("list", False)
    assert (whole["first_id"], whole["last_id"]) == (made[-1], made[0])
    seen: list[str] = []
    query, more = "limit=2", True
    while more:
        page = (await scene.get(URL, query=query)).json
        seen += [batch["id"] for batch in page["data"]]
        query, more = f"limit=2&after={page['last_id']}", page["has_more"]
    assert seen == made[::-1]


@pytest.mark.parametrize(
    ("query", "status", "code", "param"),
    [
        ("limit=0", 400, "invalid_value", "limit"),
        ("limit=101", 400, "invalid_value", "limit"),
        ("limit=x", 400, "invalid_value", "limit"),
        ("limit=1&limit=2", 400, "invalid_value", "limit"),
        ("after=batch_nobody", 404, "batch_not_found", "after"),
    ],
)
async def test_bad_query_is_refused_by_its_parameter(
    query: str, status: int, code: str, param: str
) -> None:
    answer = await Scene().get(URL, query=query)
    assert is_error(answer, status, code, param)


async def test_foreign_batch_is_404() -> None:
    scene = Scene()
    batch_id = await scene.made()
    absent = scene.mint.mint_random("batch", "guest")
    for wire_id in (batch_id, absent, "batch_x", "nonsense"):
        for answer in (
            await scene.get(f"{URL}/{wire_id}", key=scene.other_key),
            await scene.cancel(wire_id, key=scene.other_key),
        ):
            assert is_error(answer, 404, "batch_not_found")
    answer = await scene.get(URL, key=scene.other_key, query=f"after={batch_id}")
    assert is_error(answer, 404, "batch_not_found", "after")


async def test_running_batch_is_cancelling_at_once_and_stays_so() -> None:
    for phase in (None, "Validating", "InProgress", "Finalizing"):
        scene = Scene()
        batch_id = await scene.made()
        if phase is not None:
            scene.set_status(batch_id, phase=phase)
        for content in (b"", b"{}"):
            answer = await scene.cancel(batch_id, content)
            assert (answer.status, answer.json["status"]) == (200, "cancelling")
            assert answer.json["cancelling_at"] is not None
        obj = scene.object(batch_id)
        assert obj["spec"]["desiredState"] == "Cancelled"
        asked = answer.json["cancelling_at"]
        scene.set_status(batch_id, phase="Cancelling", cancellingTime="2036-11-21T00:00:00Z")
        shown = (await scene.get(f"{URL}/{batch_id}")).json
        assert (shown["status"], shown["cancelling_at"]) == ("cancelling", asked)


@pytest.mark.parametrize(("content", "status"), [(b"", 200), (b"{}", 415)])
async def test_body_of_a_cancel_in_chunks_needs_a_type_unless_it_is_empty(
    content: bytes, status: int
) -> None:
    scene = Scene()
    path = f"{URL}/{await scene.made()}/cancel"
    headers = [("Authorization", f"Bearer {scene.key}"), ("Transfer-Encoding", "chunked")]
    answer = await call(scene.app, "POST", path, headers=headers, content=content)
    assert answer.status == status


async def test_ended_batch_cannot_be_cancelled_but_a_cancelled_one_is_shown() -> None:
    scene = Scene()
    batch_id = await scene.made()
    ended = {"completionTime": "2026-11-21T00:00:00Z"}
    for phase in ("Completed", "Failed", "Expired"):
        scene.set_status(batch_id, phase=phase, **ended)
        answer = await scene.cancel(batch_id)
        assert is_error(answer, 409, "batch_state_conflict")
        assert answer.headers["x-should-retry"] == "false"
        assert scene.object(batch_id)["spec"].get("desiredState") != "Cancelled"
    scene.set_status(batch_id, phase="Cancelled", **ended)
    answer = await scene.cancel(batch_id)
    assert (answer.status, answer.json["status"]) == (200, "cancelled")
    assert answer.json["cancelled_at"] == 1_795_219_200


async def test_cancel_that_meets_the_end_is_409() -> None:
    scene = Scene()
    batch_id = await scene.made()
    patch = scene.kube.patch

    async def end_first(plural: str, obj: Any, change: Any) -> Any:
        scene.kube.patch = patch  # type: ignore[method-assign]
        scene.set_status(batch_id, phase="Completed", completionTime="2026-11-21T00:00:00Z")
        return await patch(plural, obj, change)

    scene.kube.patch = end_first  # type: ignore[method-assign]
    assert is_error(await scene.cancel(batch_id), 409, "batch_state_conflict")


async def test_batch_that_is_being_removed_is_404() -> None:
    scene = Scene()
    batch_id = (await scene.make(idempotency_key="k")).json["id"]
    obj = scene.object(batch_id)
    obj["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    scene.kube.put("gatewaybatches", obj)
    assert is_error(await scene.get(f"{URL}/{batch_id}"), 404, "batch_not_found")
    assert is_error(await scene.cancel(batch_id), 404, "batch_not_found")
    assert is_error(await scene.make(idempotency_key="k"), 404, "batch_not_found")
    assert (await scene.get(URL)).json["data"] == []


def render(**status: Any) -> dict[str, Any]:
    request = {
        "accountName": "demo",
        "endpoint": "/v1/moderations",
        "completionWindow": "24h",
        "inputFileName": "file-a",
    }
    meta = {"name": "batch-a", "creationTimestamp": "2023-11-14T22:13:20Z"}
    obj = {"metadata": meta, "spec": {"request": request}, "status": status}
    return render_batch(obj).model_dump()


def test_failed_batch_lists_its_errors_with_all_their_keys() -> None:
    errors = [
        {"code": "duplicate_custom_id", "message": "m", "param": "custom_id", "line": 7},
        {"code": "empty_file", "message": "e"},
    ]
    batch = render(phase="Failed", errors=errors, completionTime="2023-11-14T22:13:23Z")
    assert (batch["status"], batch["failed_at"]) == ("failed", 1_700_000_003)
    assert batch["errors"]["object"] == "list"
    assert batch["errors"]["data"][1] == {
        "code": "empty_file",
        "message": "e",
        "param": None,
        "line": None,
    }


def test_output_files_are_named_once_they_are_there() -> None:
    names = {"outputFileName": "file-o", "errorFileName": "file-e"}
    assert render(phase="Finalizing", **names)["output_file_id"] is None
    batch = render(
        phase="Completed",
        **names,
        completionTime="2023-11-14T22:13:23Z",
        counts={"total": 3, "completed": 2, "failed": 1},
        modelId="m",
    )
    assert (batch["output_file_id"], batch["error_file_id"]) == ("file-o", "file-e")
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert (batch["completed_at"], batch["model"]) == (1_700_000_003, "m")
    assert [batch[name] for name in ("failed_at", "expired_at", "cancelled_at")] == [None] * 3


@pytest.mark.parametrize(("count", "is_copied"), [(16, True), (17, False)])
async def test_batch_of_a_file_of_many_parts_has_its_name_alone(
    count: int, is_copied: bool
) -> None:
    scene = Scene()
    segments = [{"key": "uploads/demo/u/part", "bytes": 1, "sha256": "0" * 64}] * count
    batch_id = await scene.made(input_file_id=scene.put_file(request={"segments": segments}))
    request = scene.object(batch_id)["spec"]["request"]
    assert request.get("segments") == (segments if is_copied else None)
    assert request["fingerprint"]


async def test_number_of_open_batches_of_account_is_bounded() -> None:
    scene = Scene(open_batches_per_account=2)
    first = await scene.made()
    headers = [("Idempotency-Key", "k")]
    kept = await scene.make(headers=headers)
    refused = await scene.make()
    assert is_error(refused, 409, "batch_state_conflict")
    assert refused.headers["x-should-retry"] == "false"
    # no further one is made of these two
    again = await scene.make(headers=headers)
    assert again.json["id"] == kept.json["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in kept.headers
    other = scene.body(input_file_id=scene.put_file("guest"))
    assert (await scene.make(other, key=scene.other_key)).status == 200
    scene.set_status(first, phase="Failed")
    await scene.made()


async def test_lists_at_once_hold_a_few_large_batches_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    made = [await scene.made() for _ in range(20)]
    alive, most = 0, 0
    read = scene.kube.get

    async def get(plural: str, name: str) -> Any:
        nonlocal alive, most
        obj = await read(plural, name)
        if plural == "gatewaybatches":
            alive += 1
            most = max(most, alive)
            await asyncio.sleep(0)
        return obj

    def render(obj: Any) -> Batch:
        nonlocal alive
        alive -= 1
        return render_batch(obj)

    monkeypatch.setattr(scene.kube, "get", get)
    monkeypatch.setattr(service, "render_batch", render)
    lists = [scene.get(URL, query="limit=20") for _ in range(4)]
    for answer in await asyncio.gather(*lists):
        assert [batch["id"] for batch in answer.json["data"]] == made[::-1]
    assert (alive, most) == (0, 16)


class Head(dict[str, Any]):
    """A head that can be counted while it is held."""


async def test_list_holds_one_page_of_heads_however_many_batches_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(open_batches_per_account=30)
    made = [await scene.made() for _ in range(30)]
    held, most = 0, 0
    list_page = scene.kube.list_page

    def forget() -> None:
        nonlocal held
        held -= 1

    async def list_ten(plural: str, **named: Any) -> Page:
        nonlocal held, most
        page = await list_page(plural, **{**named, "limit": named.get("limit") or 5})
        heads: list[Object] = []
        for head in map(Head, page.items):
            weakref.finalize(head, forget)
            heads.append(head)
        held += len(heads)
        most = max(most, held)
        return dataclasses.replace(page, items=heads)

    monkeypatch.setattr(scene.kube, "list_page", list_ten)
    for order, wanted in (("desc", made[::-1]), ("asc", made)):
        query = f"limit=10&order={order}&after={wanted[14]}"
        answer = await scene.get(URL, query=query)
        assert [batch["id"] for batch in answer.json["data"]] == wanted[15:25]
        assert answer.json["has_more"]
    assert 5 <= most <= 10
