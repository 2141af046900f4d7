"""`/v1/uploads` (contract §4): what wins, what is refused, and what is left behind."""

import asyncio
import base64
import hashlib
import json
import time
from typing import Any

import pytest
import xxhash

from gateway_core.api.ids import id_to_name
from gateway_core.api.resource import Object
from gateway_core.api.upload import LIFETIME_SECONDS
from gateway_core.files import parts
from gateway_core.files.uploads import MOST_PART_BYTES
from gateway_core.kube.errors import KubernetesUnavailable, WriteConflict, WriteOutcomeUnknown
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import Answer, Gateway, call
from tests.unit.apiserver.uploads import BOUNDARY, Uploader, write_form


@pytest.fixture
def uploader(gateway: Gateway) -> Uploader:
    return Uploader(gateway)


def refused(answer: Answer, status: int, code: str, param: str | None = None) -> None:
    assert answer.status == status, answer.body
    error = answer.json["error"]
    assert (error["code"], error["param"]) == (code, param), error
    assert set(error) == {"message", "type", "param", "code"}


def conflicts(answer: Answer) -> None:
    refused(answer, 409, "upload_state_conflict")
    assert answer.headers["x-should-retry"] == "false"


async def test_parts_become_one_file_in_requested_order(uploader: Uploader) -> None:
    before = int(time.time())
    answer = await uploader.create(6)
    created = answer.json
    assert answer.headers["cache-control"] == "no-store"
    assert created["created_at"] >= before
    assert created == {
        "id": created["id"],
        "object": "upload",
        "bytes": 6,
        "created_at": created["created_at"],
        "expires_at": created["created_at"] + 3600,
        "filename": "a.bin",
        "purpose": "user_data",
        "status": "pending",
        "file": None,
    }
    assert await uploader.read_used() == 6
    upload = created["id"]
    last, first = await asyncio.gather(uploader.add(upload, b"def"), uploader.add(upload, b"abc"))
    unlisted = await uploader.send(upload, b"not listed", filename=None)
    assert set(unlisted.json) == {"id", "object", "created_at", "upload_id"}
    done = await uploader.complete(upload, first, last)
    assert done.status == 200, done.body
    (file,) = uploader.list_files()
    assert uploader.read_file(file) == b"abcdef"
    segments = file["spec"]["request"]["segments"]
    assert [segment["xxh3"] for segment in segments] == [
        xxhash.xxh3_128_hexdigest(part) for part in (b"abc", b"def")
    ]
    shown = {**done.json["file"], "created_at": 0}
    assert {**done.json, "file": None} == {**created, "status": "completed"}
    assert shown == {
        "id": file["metadata"]["name"],
        "object": "file",
        "bytes": 6,
        "created_at": 0,
        "expires_at": None,
        "filename": "a.bin",
        "purpose": "user_data",
        "status": "processed",
        "status_details": None,
    }
    claims = await uploader.gateway.storage.list_claims("demo", "files", 0)
    assert [(claim.member, claim.bytes) for claim in claims] == [(file["metadata"]["name"], 6)]


async def test_receipt_may_have_only_sha256(uploader: Uploader) -> None:
    upload = await uploader.open(3)
    part = await uploader.add(upload, b"abc")
    contents = uploader.gateway.store.contents
    (key,) = [key for key in contents if key.endswith(".json")]
    sha256 = hashlib.sha256(b"abc").hexdigest()
    contents[key] = json.dumps({"bytes": 3, "sha256": sha256}).encode()
    done = await uploader.complete(upload, part)
    assert done.status == 200, done.body
    (file,) = uploader.list_files()
    [segment] = file["spec"]["request"]["segments"]
    assert segment == {"key": segment["key"], "bytes": 3, "sha256": sha256}
    answer = await call(
        uploader.gateway.app,
        "GET",
        f"/v1/files/{file['metadata']['name']}/content",
        headers=[("Authorization", f"Bearer {uploader.key}")],
    )
    assert (answer.status, answer.body) == (200, b"abc")


async def test_metric_counts_bytes_of_stored_parts(uploader: Uploader) -> None:
    upload = await uploader.open(6)
    await uploader.add(upload, b"abcd")
    refused(await uploader.send(upload, b""), 400, "empty_part", "data")
    shown = await call(uploader.gateway.health, "GET", "/metrics")
    line = b'gateway_content_bytes_total{direction="in",surface="uploads"} 4.0'
    assert line in shown.body


async def test_repeated_completion_gets_same_response_and_other_is_409(
    uploader: Uploader,
) -> None:
    upload = await uploader.open(2)
    a, b = await uploader.add(upload, b"a"), await uploader.add(upload, b"b")
    first = await uploader.complete(upload, a, b)
    uploader.pass_hour()
    again = await uploader.complete(upload, a, b)
    assert (again.status, again.body) == (200, first.body)
    conflicts(await uploader.complete(upload, b, a))
    conflicts(await uploader.complete(upload, a))
    conflicts(await uploader.cancel(upload))
    conflicts(await uploader.send(upload, b"c"))
    assert len(uploader.list_files()) == 1


async def test_cancellation_is_idempotent_and_frees_storage(
    uploader: Uploader,
) -> None:
    upload = await uploader.open(100)
    part = await uploader.add(upload, b"a" * 100)
    first = await uploader.cancel(upload)
    assert first.status == 200
    assert first.json["status"] == "cancelled"
    assert first.json["file"] is None
    assert await uploader.read_used() == 0
    again = await uploader.post_json(f"/{upload}/cancel", {})
    assert (again.status, again.body) == (200, first.body)
    conflicts(await uploader.complete(upload, part))
    conflicts(await uploader.send(upload, b"a"))
    assert uploader.list_files() == []


@pytest.mark.parametrize("request_kind", ["part", "complete", "cancel"])
async def test_first_request_after_the_hour_writes_expired(
    uploader: Uploader, request_kind: str
) -> None:
    upload = await uploader.open(1)
    part = await uploader.add(upload, b"a")
    uploader.pass_hour()
    if request_kind == "part":
        conflicts(await uploader.send(upload, b"a"))
    elif request_kind == "complete":
        conflicts(await uploader.complete(upload, part))
    else:
        conflicts(await uploader.cancel(upload))
    assert uploader.find(upload)["spec"]["outcome"] == "Expired"
    assert await uploader.read_used() == 0
    # and no later answer says otherwise, whatever the clock does
    uploader.gateway.clock = time.time
    conflicts(await uploader.complete(upload, part))
    conflicts(await uploader.cancel(upload))


async def test_concurrent_completions_and_cancellations_have_one_outcome(
    uploader: Uploader,
) -> None:
    for _ in range(2):
        upload = await uploader.open(1)
        part = await uploader.add(upload, b"a")
        calls = [uploader.complete(upload, part), uploader.cancel(upload)] * 10
        answers = await asyncio.gather(*calls)
        won = {answer.body for answer in answers if answer.status == 200}
        assert len(won) == 1
        for answer in answers:
            if answer.status != 200:
                conflicts(answer)
        outcome = uploader.find(upload)["spec"]["outcome"]
        files = [
            file
            for file in uploader.list_files()
            if file["spec"]["request"]["uploadName"] == id_to_name(upload)
        ]
        assert len(files) == (outcome == "Completed")
    assert await uploader.read_used() == len(uploader.list_files())


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"bytes": ...}, 400, "missing_required_parameter", "bytes"),
        ({"bytes": None}, 400, "missing_required_parameter", "bytes"),
        ({"bytes": 0}, 400, "invalid_value", "bytes"),
        ({"bytes": -1}, 400, "invalid_value", "bytes"),
        ({"bytes": "6"}, 400, "invalid_type", "bytes"),
        ({"bytes": True}, 400, "invalid_type", "bytes"),
        ({"bytes": 1.5}, 400, "invalid_type", "bytes"),
        ({"bytes": 52_428_801}, 413, "file_too_large", "bytes"),
        ({"bytes": 209_715_201, "purpose": "batch"}, 413, "file_too_large", "bytes"),
        ({"filename": ...}, 400, "missing_required_parameter", "filename"),
        ({"filename": ""}, 400, "invalid_value", "filename"),
        ({"filename": 5}, 400, "invalid_type", "filename"),
        ({"mime_type": ...}, 400, "missing_required_parameter", "mime_type"),
        ({"mime_type": ""}, 400, "invalid_value", "mime_type"),
        ({"mime_type": "x" * 256}, 400, "invalid_value", "mime_type"),
        ({"purpose": ...}, 400, "missing_required_parameter", "purpose"),
        ({"purpose": "assistants"}, 400, "invalid_value", "purpose"),
        ({"purpose": "batch_output"}, 400, "invalid_value", "purpose"),
        ({"expires_after": 5}, 400, "invalid_type", "expires_after"),
        (
            {"expires_after": {"anchor": "created_at", "seconds": 3599}},
            400,
            "invalid_value",
            "expires_after.seconds",
        ),
        (
            {"expires_after": {"anchor": "now", "seconds": 3600}},
            400,
            "invalid_value",
            "expires_after.anchor",
        ),
    ],
)
async def test_invalid_create_makes_nothing(
    uploader: Uploader, changes: dict[str, Any], status: int, code: str, param: str
) -> None:
    refused(await uploader.create(6, **changes), status, code, param)
    assert uploader.gateway.kube.list_objects("gatewayuploads") == []


async def test_size_limits_are_exact_and_unknown_fields_ignored(uploader: Uploader) -> None:
    assert (await uploader.create(52_428_800, novelty=1)).status == 200
    assert (await uploader.create(209_715_200, purpose="batch")).status == 200
    whole = await uploader.create(6.0, mime_type="pdf", expires_after=None)  # type: ignore[arg-type]
    assert whole.json["bytes"] == 6


async def test_malformed_bodies_are_refused(uploader: Uploader) -> None:
    refused(await uploader.post("", b"{", "application/json"), 400, "invalid_json")
    refused(await uploader.post("", b"[]", "application/json"), 400, "invalid_type")
    refused(await uploader.post("", b"{}", "text/plain"), 415, "unsupported_media_type")
    long = b'{"a":"' + b"x" * 1024 * 1024 + b'"}'
    refused(await uploader.post("", long, "application/json"), 413, "request_too_large")


async def test_storage_limit_of_account_is_exact(uploader: Uploader) -> None:
    uploader.gateway.put_account("demo", storageBytes=100)
    first = await uploader.open(60)
    refused(await uploader.create(41), 413, "storage_limit_exceeded")
    assert (await uploader.create(40)).status == 200
    await uploader.cancel(first)
    assert (await uploader.create(60)).status == 200
    assert await uploader.read_used() == 100


async def test_number_of_pending_uploads_of_account_is_bounded(
    uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_core.files.parts.MOST_PENDING", 2)
    cancelled, completed = await uploader.open(6), await uploader.open(6)
    answer = await uploader.create(6)
    refused(answer, 429, "rate_limit_exceeded")
    assert answer.headers["retry-after"] == "60"
    assert await uploader.read_used() == 12
    other = Uploader(uploader.gateway, uploader.gateway.other_key)
    assert (await other.create(6)).status == 200

    await uploader.cancel(cancelled)
    assert (await uploader.create(6, key="k")).status == 200
    assert (await uploader.create(6, key="k")).status == 200
    await uploader.complete(completed, await uploader.add(completed, b"sixsix"))
    assert (await uploader.create(6)).status == 200
    refused(await uploader.create(6), 429, "rate_limit_exceeded")
    uploader.gateway.parts.now += LIFETIME_SECONDS
    assert (await uploader.create(6)).status == 200


async def test_concurrent_creates_with_idempotency_key_make_one_upload(uploader: Uploader) -> None:
    answers = await asyncio.gather(*(uploader.create(6, key="k") for _ in range(10)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 9
    assert len(uploader.gateway.kube.list_objects("gatewayuploads")) == 1
    assert await uploader.read_used() == 6
    refused(await uploader.create(7, key="k"), 409, "idempotency_conflict")
    other = Uploader(uploader.gateway, uploader.gateway.other_key)
    assert (await other.create(7, key="k")).json["id"] != answers[0].json["id"]
    await uploader.cancel(answers[0].json["id"])
    again = await uploader.create(6, key="k")
    assert again.body == answers[0].body
    assert await uploader.read_used() == 0


async def test_explicit_default_expiry_equals_none_in_replay(uploader: Uploader) -> None:
    life = {"anchor": "created_at", "seconds": 30 * 86400}
    first = await uploader.create(6, key="k", purpose="batch")
    again = await uploader.create(6, key="k", purpose="batch", expires_after=life)
    assert (again.status, again.body) == (200, first.body)
    shorter = {**life, "seconds": 3600}
    other = await uploader.create(6, key="k", purpose="batch", expires_after=shorter)
    refused(other, 409, "idempotency_conflict")


async def test_upload_withdrawn_for_lack_of_room_is_refused_again(
    uploader: Uploader,
) -> None:
    """What the account stores is lost and known again, with less room, before the confirmation."""
    gateway = uploader.gateway
    gateway.put_account("demo", storageBytes=100)
    create, storage = gateway.kube.create, gateway.storage

    async def create_and_lose(plural: str, obj: Any) -> Object:
        made = await create(plural, obj)
        storage.lose()
        token = await storage.begin_rebuild("demo", "files")
        assert token is not None
        await storage.finish_rebuild("demo", "files", token, {"file-other": 50})
        return made

    gateway.kube.create = create_and_lose  # type: ignore[method-assign]
    refused(await uploader.create(60, key="k"), 413, "storage_limit_exceeded")
    (upload,) = gateway.kube.list_objects("gatewayuploads")
    assert upload["spec"]["outcome"] == "Cancelled"
    refused(await uploader.create(60, key="k"), 413, "storage_limit_exceeded")
    refused(await uploader.create(50, key="k"), 409, "idempotency_conflict")
    assert (await uploader.create(50, key="another")).status == 200
    assert await uploader.read_used() == 100


async def test_concurrent_creates_of_different_sizes_reserve_the_winners(
    uploader: Uploader,
) -> None:
    answers = await asyncio.gather(*(uploader.create(n + 1, key="k") for n in range(8)))
    (won,) = (answer.json for answer in answers if answer.status == 200)
    assert sum(answer.status == 409 for answer in answers) == 7
    assert await uploader.read_used() == won["bytes"]


async def test_foreign_upload_is_404(uploader: Uploader) -> None:
    upload = await uploader.open(1)
    part = await uploader.add(upload, b"a")
    other = Uploader(uploader.gateway, uploader.gateway.other_key)
    for theirs in (upload, "upload_" + "a" * 26, "upload_x", "file-" + "a" * 26):
        refused(await other.send(theirs, b"a"), 404, "upload_not_found")
        refused(await other.complete(theirs, part), 404, "upload_not_found")
        refused(await other.cancel(theirs), 404, "upload_not_found")
    own = await other.open(1)
    refused(await other.complete(own, part), 404, "part_not_found", "part_ids")


async def test_upload_being_deleted_is_404(uploader: Uploader) -> None:
    upload = await uploader.open(1)
    await uploader.gateway.kube.delete("gatewayuploads", id_to_name(upload))
    assert "deletionTimestamp" in uploader.find(upload)["metadata"]
    refused(await uploader.cancel(upload), 404, "upload_not_found")
    refused(await uploader.send(upload, b"a"), 404, "upload_not_found")


async def test_get_and_list_are_404(uploader: Uploader) -> None:
    gateway, upload = uploader.gateway, await uploader.open(1)
    missing = await gateway.get(f"/v1/uploads/{upload}")
    refused(missing, 404, "not_found")
    refused(await gateway.get("/v1/uploads"), 404, "not_found")
    other = await call(gateway.app, "PUT", "/v1/uploads")
    assert (other.status, other.headers["allow"]) == (405, "POST")
    refused(await uploader.post(f"/{upload}/"), 404, "not_found")


async def test_error_of_part_comes_before_error_of_upload(
    uploader: Uploader,
) -> None:
    upload = await uploader.open(1)
    await uploader.cancel(upload)
    for target in (upload, "upload_" + "a" * 26, await uploader.open(1)):
        path, kind = f"/{target}/parts", f"multipart/form-data; boundary={BOUNDARY}"
        refused(await uploader.send(target, b""), 400, "empty_part", "data")
        other = await uploader.send(target, b"a", field="file")
        refused(other, 400, "missing_required_parameter", "data")
        refused(await uploader.post_json(path, {}), 415, "unsupported_media_type")
        cut = write_form(b"abc")[:-9]
        refused(await uploader.post(path, cut, kind), 400, "invalid_value")
        declared = [("Content-Length", str(MOST_PART_BYTES + 64 * 1024 + 1))]
        refused(await uploader.post(path, b"", kind, declared), 413, "part_too_large", "data")
    assert not uploader.gateway.store.contents


async def test_part_size_limit_is_exact(
    uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_PART_BYTES == 64 * 1024 * 1024
    monkeypatch.setattr(parts, "MOST_PART_BYTES", 10)
    upload = await uploader.open(1)
    assert (await uploader.send(upload, b"x" * 10)).status == 200
    kept = len(uploader.gateway.store.contents)
    refused(await uploader.send(upload, b"x" * 11), 413, "part_too_large", "data")
    assert len(uploader.gateway.store.contents) == kept


async def test_parts_may_exceed_the_upload_only_by_repetitions_and_number_a_thousand(
    uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_core.files.uploads.MOST_PART_BYTES", 10)
    upload = await uploader.open(5)
    for _ in range(4):
        await uploader.add(upload, b"12345")
    refused(await uploader.send(upload, b"1"), 400, "too_many_part_bytes", "data")
    # lost counters are counted again from the store
    uploader.gateway.parts.lose()
    refused(await uploader.send(upload, b"1"), 400, "too_many_part_bytes", "data")
    stored = [key for key in uploader.gateway.store.contents if not key.endswith(".json")]
    assert len(stored) == 4

    other = await uploader.open(1)
    await uploader.add(other, b"a")
    others = {f"part_{n}": 1 for n in range(999)}
    await uploader.gateway.parts.establish("demo", id_to_name(other), others)
    refused(await uploader.send(other, b"b"), 400, "too_many_part_bytes", "data")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "part_ids"),
        ({"part_ids": None}, "missing_required_parameter", "part_ids"),
        ({"part_ids": "part_a"}, "invalid_type", "part_ids"),
        ({"part_ids": [1]}, "invalid_type", "part_ids"),
        ({"part_ids": []}, "invalid_value", "part_ids"),
        ({"part_ids": [""]}, "invalid_value", "part_ids"),
        ({"part_ids": [f"p{n}" for n in range(1001)]}, "invalid_value", "part_ids"),
        ({"part_ids": ["a", "b", "a"]}, "duplicate_part", "part_ids"),
        ({"part_ids": ["a"], "md5": "zz"}, "invalid_value", "md5"),
        ({"part_ids": ["a"], "md5": 5}, "invalid_type", "md5"),
        ({"part_ids": ["a"], "md5": "é" * 24}, "invalid_value", "md5"),
        ({"part_ids": ["a"], "md5": "A" * 24}, "invalid_value", "md5"),
    ],
)
async def test_invalid_completion_changes_nothing(
    uploader: Uploader, body: dict[str, Any], code: str, param: str
) -> None:
    upload = await uploader.open(1)
    refused(await uploader.post_json(f"/{upload}/complete", body), 400, code, param)
    assert uploader.find(upload)["spec"]["outcome"] == "Pending"


async def test_part_of_an_upload_that_has_ended_meanwhile_is_discarded(
    uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, store = await uploader.open(1), uploader.gateway.store
    put = store.put

    async def cancel_after(*args: Any, **options: Any) -> Any:
        result = await put(*args, **options)
        assert (await uploader.cancel(upload)).status == 200
        return result

    monkeypatch.setattr(store, "put", cancel_after)
    conflicts(await uploader.send(upload, b"a"))
    assert not store.contents


async def test_completion_succeeds_after_a_refused_one(uploader: Uploader) -> None:
    upload = await uploader.open(3)
    a, b = await uploader.add(upload, b"a"), await uploader.add(upload, b"bc")
    refused(await uploader.complete(upload, a), 400, "upload_size_mismatch", "part_ids")
    elsewhere = await uploader.add(await uploader.open(2), b"bc")
    for strange in (elsewhere, "part_" + "a" * 26, "../../etc", "part_x"):
        refused(await uploader.complete(upload, a, strange), 404, "part_not_found", "part_ids")
    md5 = hashlib.md5(b"abc", usedforsecurity=False)
    wrong = await uploader.complete(upload, b, a, md5=md5.hexdigest())
    refused(wrong, 400, "md5_mismatch", "md5")
    assert uploader.find(upload)["spec"]["outcome"] == "Pending"
    assert (await uploader.complete(upload, a, b, md5=md5.hexdigest().upper())).status == 200
    # what is said again is held against what stands
    encoded = base64.b64encode(md5.digest()).decode()
    assert (await uploader.complete(upload, a, b, md5=encoded)).status == 200
    assert (await uploader.complete(upload, a, b)).status == 200
    refused(await uploader.complete(upload, a, b, md5="0" * 32), 400, "md5_mismatch", "md5")


async def test_file_expires_as_its_upload_requested(uploader: Uploader) -> None:
    life = {"anchor": "created_at", "seconds": 7200}
    for changes, seconds in (({"expires_after": life}, 7200), ({"purpose": "batch"}, 2_592_000)):
        upload = await uploader.open(1, **changes)
        done = await uploader.complete(upload, await uploader.add(upload, b"a"))
        file = done.json["file"]
        assert file["expires_at"] == file["created_at"] + seconds
        assert file["purpose"] == changes.get("purpose", "user_data")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(WriteOutcomeUnknown("reset"), applied=True),
        Fault(WriteOutcomeUnknown("reset")),
        Fault(WriteConflict("changed")),
    ],
    ids=["applied", "lost", "conflict"],
)
async def test_outcome_is_decided_again_after_a_failed_write(
    uploader: Uploader, fault: Fault
) -> None:
    upload = await uploader.open(1)
    part = await uploader.add(upload, b"a")
    uploader.gateway.kube.order_faults("patch", fault)
    assert (await uploader.complete(upload, part)).status == 200
    uploader.gateway.kube.order_faults("patch", fault)
    assert (await uploader.cancel(await uploader.open(1))).status == 200
    assert len(uploader.list_files()) == 1


async def test_next_request_creates_file_of_killed_completion(
    uploader: Uploader,
) -> None:
    upload = await uploader.open(1)
    part = await uploader.add(upload, b"a")
    kube = uploader.gateway.kube
    away = [Fault(KubernetesUnavailable("away"))] * 40
    kube.order_faults("create", *away)
    refused(await uploader.complete(upload, part), 503, "service_unavailable")
    assert uploader.find(upload)["spec"]["outcome"] == "Completed"
    assert uploader.list_files() == []
    # the bytes are not counted twice, and not let go
    assert await uploader.read_used() == 1
    kube._faults["create"].clear()
    assert (await uploader.complete(upload, part)).status == 200
    assert len(uploader.list_files()) == 1


async def test_outages_are_503_and_leave_upload_pending(uploader: Uploader) -> None:
    gateway, upload = uploader.gateway, await uploader.open(1)
    part = await uploader.add(upload, b"a")
    gateway.store.away = True
    refused(await uploader.send(upload, b"a"), 503, "service_unavailable")
    refused(await uploader.complete(upload, part), 503, "service_unavailable")
    gateway.store.away = False
    gateway.parts.away = gateway.storage.away = True
    refused(await uploader.create(), 503, "service_unavailable")
    refused(await uploader.send(upload, b"a"), 503, "service_unavailable")
    # what is reserved already can be ended without the figures
    assert (await uploader.complete(upload, part)).status == 200
    gateway.storage.away = False
    gateway.kube.away = True
    refused(await uploader.complete(upload, part), 503, "service_unavailable")
    refused(await uploader.create(), 503, "service_unavailable")
