"""`/v1/files` on fakes: making, showing and deleting files (contract §3)."""

import asyncio
import hashlib
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway_apiserver.surfaces.files import creation
from gateway_core.kube.errors import KubernetesUnavailable, WriteOutcomeUnknown
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.filing import BOUNDARY, FILES, Cabinet, end, form, part
from tests.unit.apiserver.gateway import Gateway

KEYS = ["id", "object", "bytes", "created_at", "expires_at"]
KEYS += ["filename", "purpose", "status", "status_details"]
MIB = 1024 * 1024
KIND = ("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")


@pytest.fixture
def cabinet(gateway: Gateway) -> Cabinet:
    return Cabinet(gateway)


async def refuse(cabinet: Cabinet, body: bytes, **options: Any) -> tuple[int, str, str | None]:
    """Status, code and param of a create that leaves nothing behind."""
    answer = await cabinet.send(body, **options)
    assert await cabinet.count_traces() == (0, 0, 0)
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status, error["code"], error["param"]


class TestCreate:
    async def test_create_stores_bytes_claim_and_object(self, cabinet: Cabinet) -> None:
        made = await cabinet.make(b"hello")
        assert list(made) == KEYS
        assert abs(made["created_at"] - datetime.now(UTC).timestamp()) < 5
        assert made["id"].startswith("file-")
        assert made == {
            "id": made["id"],
            "object": "file",
            "bytes": 5,
            "created_at": made["created_at"],
            "expires_at": None,
            "filename": "a.txt",
            "purpose": "user_data",
            "status": "processed",
            "status_details": None,
        }
        (obj,) = cabinet.gateway.kube.list_objects("gatewayfiles")
        request = obj["spec"]["request"]
        [segment] = request["segments"]
        assert cabinet.gateway.store.contents == {segment["key"]: b"hello"}
        assert segment["sha256"] == hashlib.sha256(b"hello").hexdigest()
        assert segment["xxh3"] == xxhash.xxh3_128_hexdigest(b"hello")
        assert await cabinet.read_used() == 5
        assert obj["metadata"]["name"] == made["id"]
        assert obj["metadata"]["finalizers"]
        assert request["accountName"] == "demo"

    async def test_form_fields_come_in_any_order_and_chunks(self, cabinet: Cabinet) -> None:
        unknown = part("model", "x") * 2 + part("note", b"\xff")
        file = part("file", b"12345", filename="a")
        body = file + unknown + part("purpose", "batch") + end()
        for size in (1, 64, len(body)):
            chunks = [body[at : at + size] for at in range(0, len(body), size)]
            answer = await cabinet.send(body, chunks=chunks)
            assert (answer.status, answer.json["bytes"], answer.json["purpose"]) == (
                200,
                5,
                "batch",
            )

    async def test_bytes_that_look_like_boundaries_are_kept(self, cabinet: Cabinet) -> None:
        content = f"\r\n--{BOUNDARY}x\r\n--\r\n-".encode() + bytes(range(256)) * 3
        made = await cabinet.make(content)
        answer = await cabinet.ask("GET", f"{FILES}/{made['id']}/content")
        assert answer.body == content

    @pytest.mark.parametrize(
        ("options", "life"),
        [
            ({"purpose": "user_data"}, None),
            ({"purpose": "batch"}, 2_592_000),
            ({"anchor": "created_at", "seconds": "3600"}, 3600),
            ({"anchor": "created_at", "seconds": "2592000"}, 2_592_000),
        ],
    )
    async def test_expiry_is_requested_or_follows_from_purpose(
        self, cabinet: Cabinet, options: dict[str, str], life: int | None
    ) -> None:
        made = await cabinet.make(**options)
        assert made["expires_at"] == (None if life is None else made["created_at"] + life)

    @pytest.mark.parametrize(
        ("fields", "code", "param"),
        [
            ({"seconds": "3600"}, "missing_required_parameter", "expires_after[anchor]"),
            ({"anchor": "created_at"}, "missing_required_parameter", "expires_after[seconds]"),
            ({"anchor": "now", "seconds": "3600"}, "invalid_value", "expires_after[anchor]"),
        ],
    )
    async def test_invalid_expiry_is_400(
        self, cabinet: Cabinet, fields: dict[str, str], code: str, param: str
    ) -> None:
        assert await refuse(cabinet, form(**fields)) == (400, code, param)
        for seconds in ("3599", "2592001", "1e4"):
            bad = form(anchor="created_at", seconds=seconds)
            refusal = (400, "invalid_value", "expires_after[seconds]")
            assert await refuse(cabinet, bad) == refusal

    @pytest.mark.parametrize("purpose", ["batch_output", "assistants", "vision", "", "user_data\0"])
    async def test_reserved_purposes_are_400(self, cabinet: Cabinet, purpose: str) -> None:
        assert await refuse(cabinet, form(purpose=purpose)) == (400, "invalid_value", "purpose")

    async def test_form_has_purpose_and_one_file_with_name_and_bytes(
        self, cabinet: Cabinet
    ) -> None:
        purpose, one = part("purpose", "user_data"), part("file", b"x", filename="a")
        for body, code, field in (
            (one + end(), "missing_required_parameter", "purpose"),
            (purpose + end(), "missing_required_parameter", "file"),
            (purpose + part("file", b"x") + end(), "invalid_value", "file"),
            (form(b""), "empty_file", "file"),
            (purpose + one + one + end(), "invalid_value", "file"),
            (purpose + purpose + one + end(), "invalid_value", "purpose"),
        ):
            assert await refuse(cabinet, body) == (400, code, field)

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ("a b.txt", "a b.txt"),
            ("../../etc/passwd", "passwd"),
            ("C:\\\\dir\\\\notes.txt", "notes.txt"),
            ("", "file"),
            ("dir/", "file"),
            ("..", "file"),
            ("näme-€.txt", "näme-€.txt"),
            ("a\x01\x7fb", "ab"),
            ("é" * 200, "é" * 127),
            ('say \\"hi\\".txt', 'say "hi".txt'),
        ],
    )
    async def test_names_of_files(self, cabinet: Cabinet, given: str, kept: str) -> None:
        made = await cabinet.make(filename=given)
        assert made["filename"] == kept

    async def test_extended_filename_has_precedence(self, cabinet: Cabinet) -> None:
        purpose = part("purpose", "user_data")
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="plain"'
        for extended, kept in (
            ("UTF-8''na%C3%AFve.txt", "naïve.txt"),
            ("iso-8859-1'en'%A3.txt", "£.txt"),
            ("utf-8''%ff", "plain"),
            ("idna''x", "plain"),
        ):
            file = f"{head}; filename*={extended}\r\n\r\nx\r\n".encode()
            answer = await cabinet.send(purpose + file + end())
            assert answer.json["filename"] == kept

    async def test_size_limits_are_exact(
        self, cabinet: Cabinet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = {"user_data": 52_428_800, "batch": 95_000_000}
        assert limits == creation.DIRECT_LIMITS
        assert max(limits.values()) == creation.DIRECT_BATCH_BYTES
        monkeypatch.setattr(creation, "DIRECT_LIMITS", {"user_data": 100, "batch": 200})
        monkeypatch.setattr(creation, "DIRECT_BATCH_BYTES", 200)
        contents = cabinet.gateway.store.contents
        for purpose, most in (("user_data", 100), ("batch", 200)):
            assert (await cabinet.make(bytes(most), purpose=purpose))["bytes"] == most
            contents.clear()
            over = part("file", bytes(most + 1), filename="a")
            answer = await cabinet.send(over + part("purpose", purpose) + end())
            assert (answer.status, answer.json["error"]["code"]) == (413, "file_too_large")
            assert not contents

    async def test_file_over_its_limit_is_not_read_to_its_end(self, cabinet: Cabinet) -> None:
        begin = form(b"", "user_data").partition(b"\r\n--b0undary--")[0]
        answer = await cabinet.ask(
            "POST", FILES, b"", KIND, chunks=[begin, *[bytes(MIB)] * 51], breaks_off=True
        )
        assert (answer.status, answer.json["error"]["code"]) == (413, "file_too_large")

    @pytest.mark.parametrize(
        ("kind", "status", "code"),
        [
            (KIND, 413, "file_too_large"),
            (("Content-Type", "application/json"), 415, "unsupported_media_type"),
        ],
    )
    async def test_type_of_a_body_is_judged_before_its_declared_length(
        self, cabinet: Cabinet, kind: tuple[str, str], status: int, code: str
    ) -> None:
        length = ("Content-Length", str(200 * MIB))
        answer = await cabinet.ask("POST", FILES, b"", kind, length, chunks=[])
        assert (answer.status, answer.json["error"]["code"]) == (status, code)

    async def test_number_of_files_is_bounded(self) -> None:
        cabinet = Cabinet(Gateway(files_per_account=2))
        made = [(await cabinet.make())["id"] for _ in range(2)]
        cabinet.gateway.store.away = True
        answer = await cabinet.send(form(b"1"))
        error = answer.json["error"]
        assert (answer.status, error["code"]) == (413, "storage_limit_exceeded"), "stored first"
        assert "2 files" in error["message"]
        cabinet.gateway.store.away = False
        assert await cabinet.count_traces() == (2, 10, 2)
        assert (await cabinet.ask("DELETE", f"{FILES}/{made[0]}")).status == 200
        await cabinet.make()

    async def test_concurrent_creates_succeed_while_they_fit(
        self, gateway: Gateway, cabinet: Cabinet
    ) -> None:
        gateway.put_account("demo", storageBytes=50)
        answers = await asyncio.gather(*(cabinet.send(form(b"1234567890")) for _ in range(9)))
        assert sorted(answer.status for answer in answers) == [200] * 5 + [413] * 4
        [code] = {a.json["error"]["code"] for a in answers if a.status == 413}
        assert code == "storage_limit_exceeded"
        assert await cabinet.count_traces() == (5, 50, 5)

    @pytest.mark.parametrize(
        ("kind", "status"),
        [
            ("application/json", 415),
            ("multipart/mixed; boundary=x", 415),
            ("", 415),
            ("multipart/form-data", 400),
            ("multipart/form-data; boundary=", 400),
            (f"multipart/form-data; boundary={'x' * 300}", 400),
            ("multipart/form-data; boundary=other", 400),
        ],
    )
    async def test_content_type_of_form(self, cabinet: Cabinet, kind: str, status: int) -> None:
        answer = await cabinet.ask("POST", FILES, form(), ("Content-Type", kind))
        assert answer.status == status
        assert await cabinet.count_traces() == (0, 0, 0)

    @pytest.mark.parametrize("encoding", ["gzip", "identity, gzip"])
    async def test_compressed_body_is_415(self, cabinet: Cabinet, encoding: str) -> None:
        answer = await cabinet.ask("POST", FILES, form(), KIND, ("Content-Encoding", encoding))
        assert (answer.status, answer.json["error"]["code"]) == (415, "unsupported_media_type")

    async def test_transfer_encoding_of_part_is_400(self, cabinet: Cabinet) -> None:
        encoded = part("file", b"aGk=", "Content-Transfer-Encoding: base64", filename="a")
        body = part("purpose", "user_data") + encoded + end()
        assert await refuse(cabinet, body) == (400, "invalid_value", "file")

    async def test_form_fields_are_utf_8_and_its_parts_and_end_bounded(
        self, cabinet: Cabinet
    ) -> None:
        file = part("file", b"x", filename="a")
        wrong = part("purpose", b"user\xffdata") + file + end()
        assert await refuse(cabinet, wrong) == (400, "invalid_value", "purpose")
        many = part("note", b"") * 100 + file + end()
        assert (await refuse(cabinet, many))[0] == 400
        trailing = form() + bytes(2 * MIB)
        chunks = [trailing[at : at + 65536] for at in range(0, len(trailing), 65536)]
        assert (await refuse(cabinet, trailing, chunks=chunks))[0] == 413

    @pytest.mark.parametrize(
        "body",
        [
            part("purpose", "a" * 10_000_000),
            part("more", "a" * 10_000_000),
            part("file", b"x", "X: " + "a" * 10_000_000, filename="a"),
        ],
        ids=["field", "unknown field", "head"],
    )
    async def test_large_field_or_head_is_refused_and_not_kept_in_memory(
        self, cabinet: Cabinet, body: bytes
    ) -> None:
        pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]
        tracemalloc.start()
        try:
            answer = await cabinet.ask("POST", FILES, b"", KIND, chunks=pieces)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answer.status in (400, 413), answer.body
        assert await cabinet.count_traces() == (0, 0, 0)
        assert peak < 4 * MIB

    @given(body=st.binary(max_size=300))
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    async def test_bytes_that_are_no_form_are_refused(self, cabinet: Cabinet, body: bytes) -> None:
        assert 400 <= (await refuse(cabinet, body))[0] < 500
        assert 400 <= (await refuse(cabinet, f"--{BOUNDARY}\r\n".encode() + body))[0] < 500

    @pytest.mark.parametrize("cut", [1, 10, 20, 60, 120, -1, -10])
    async def test_truncated_form_is_400(self, cabinet: Cabinet, cut: int) -> None:
        body = form(b"x" * 50)
        kept = body[: cut if cut > 0 else len(body) + cut]
        if body[len(kept) :] in (b"\n", b"\r\n"):
            return
        status, _, _ = await refuse(cabinet, kept)
        assert status == 400

    async def test_aborted_request_leaves_nothing(self, cabinet: Cabinet) -> None:
        body = form(b"x" * 500)
        for cut in (0, 50, 300, len(body)):
            answer = await cabinet.ask(
                "POST", FILES, b"", KIND, chunks=[body[:cut]], breaks_off=True
            )
            assert answer.status == 0
            assert await cabinet.count_traces() == (0, 0, 0)


async def test_account_without_own_limit_has_the_default() -> None:
    gateway = Gateway(account_bytes=7)
    cabinet = Cabinet(gateway)
    await cabinet.make(b"12345")
    assert (await cabinet.send(form(b"123"))).status == 413
    gateway.put_account("demo", storageBytes=8)
    assert (await cabinet.send(form(b"123"))).status == 200


class TestFailures:
    async def test_store_outage_is_503(self, gateway: Gateway, cabinet: Cabinet) -> None:
        gateway.store.away = True
        answer = await cabinet.send(form())
        assert (answer.status, answer.json["error"]["code"]) == (503, "service_unavailable")
        assert await cabinet.count_traces() == (0, 0, 0)

    async def test_counter_outage_refuses_only_creates(
        self, gateway: Gateway, cabinet: Cabinet
    ) -> None:
        made = await cabinet.make()
        gateway.storage.away = True
        assert (await cabinet.send(form())).status == 503
        assert (await cabinet.ask("GET", f"{FILES}/{made['id']}")).status == 200
        assert await cabinet.list() == [made["id"]]
        assert (await cabinet.ask("DELETE", f"{FILES}/{made['id']}")).status == 200
        assert await cabinet.list() == []

    async def test_create_during_kubernetes_outage_leaves_nothing(
        self, gateway: Gateway, cabinet: Cabinet
    ) -> None:
        await cabinet.make()
        faults = [Fault(KubernetesUnavailable("away"))] * 30
        gateway.kube.order_faults("create", *faults)
        answer = await cabinet.send(form())
        assert answer.status == 503
        assert await cabinet.count_traces() == (1, 5, 1)

    async def test_create_with_lost_response_makes_one_file(
        self, gateway: Gateway, cabinet: Cabinet
    ) -> None:
        gateway.kube.order_faults("create", Fault(WriteOutcomeUnknown("lost"), applied=True), None)
        made = await cabinet.make()
        assert await cabinet.list() == [made["id"]]
        assert await cabinet.count_traces() == (1, 5, 1)

    async def test_file_whose_claim_is_lost_is_withdrawn(
        self, gateway: Gateway, cabinet: Cabinet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def lose(account: str, pool: str, member: str, size: int, limit: int) -> bool:
            # the operator has looked at it meanwhile
            obj = await gateway.kube.get("gatewayfiles", member)
            await gateway.kube.patch_status("gatewayfiles", obj, {"observedGeneration": 1})
            return False

        monkeypatch.setattr(gateway.storage, "confirm", lose)
        answer = await cabinet.send(form())
        assert (answer.status, answer.json["error"]["code"]) == (413, "storage_limit_exceeded")
        (obj,) = gateway.kube.list_objects("gatewayfiles")
        assert "deletionTimestamp" in obj["metadata"]
        lost = Fault(WriteOutcomeUnknown("lost"))
        gateway.kube.order_faults("delete", Fault(KubernetesUnavailable("away")), lost, lost)
        assert (await cabinet.send(form())).status == 413
        for obj in gateway.kube.list_objects("gatewayfiles"):
            assert "deletionTimestamp" in obj["metadata"]

    async def test_file_that_cannot_be_withdrawn_is_504(
        self, gateway: Gateway, cabinet: Cabinet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def lose(*_: object) -> bool:
            return False

        monkeypatch.setattr(gateway.storage, "confirm", lose)
        monkeypatch.setattr("gateway_core.kube.retries.GIVE_UP_SECONDS", 0.3)
        away = Fault(KubernetesUnavailable("away"))
        gateway.kube.order_faults("delete", *[away] * 10)
        answer = await cabinet.send(form())
        assert (answer.status, answer.json["error"]["code"]) == (504, "upstream_timeout")
        assert len(await cabinet.list()) == 1, "it is there"

    async def test_deletion_with_lost_response_is_confirmed(
        self, gateway: Gateway, cabinet: Cabinet
    ) -> None:
        made = await cabinet.make()
        gateway.kube.order_faults("delete", Fault(WriteOutcomeUnknown("lost"), applied=True))
        await cabinet.list()
        assert (await cabinet.ask("DELETE", f"{FILES}/{made['id']}")).status == 200
        # lists wait until they have seen it
        gone = gateway.kube.list_objects("gatewayfiles")[0]["metadata"]["resourceVersion"]
        assert (await gateway.storage.read_version("demo") or 0) >= int(gone)
        assert (await cabinet.ask("DELETE", f"{FILES}/{made['id']}")).status == 404
        assert await cabinet.read_used() == 0

    async def test_lost_or_damaged_bytes_are_500(self, gateway: Gateway, cabinet: Cabinet) -> None:
        made = await cabinet.make(b"hello")
        (key,) = gateway.store.contents
        gateway.store.contents[key] = b"hellO"
        assert (await cabinet.ask("GET", f"{FILES}/{made['id']}/content")).status == 500
        del gateway.store.contents[key]
        assert (await cabinet.ask("GET", f"{FILES}/{made['id']}/content")).status == 500
        gateway.store.away = True
        assert (await cabinet.ask("GET", f"{FILES}/{made['id']}/content")).status == 503


class TestDelete:
    async def test_deleted_file_is_404_at_once(self, cabinet: Cabinet) -> None:
        made = await cabinet.make()
        path = f"{FILES}/{made['id']}"
        answer = await cabinet.ask("DELETE", path)
        assert answer.json == {"id": made["id"], "object": "file", "deleted": True}
        for method, place in (("GET", path), ("GET", path + "/content"), ("DELETE", path)):
            answer = await cabinet.ask(method, place)
            assert (answer.status, answer.json["error"]["code"]) == (404, "file_not_found")
        assert await cabinet.read_used() == 0

    async def test_concurrent_deletions_succeed_once(self, cabinet: Cabinet) -> None:
        made = await cabinet.make()
        path = f"{FILES}/{made['id']}"
        answers = await asyncio.gather(*(cabinet.ask("DELETE", path) for _ in range(8)))
        assert sorted(answer.status for answer in answers) == [200] + [404] * 7


class TestOwnership:
    async def test_foreign_files_are_404(self, gateway: Gateway, cabinet: Cabinet) -> None:
        made = await cabinet.make()
        other = Cabinet(gateway, gateway.other_key)
        for path in (f"{FILES}/{made['id']}", f"{FILES}/{made['id']}/content"):
            mine = await cabinet.ask("GET", path.replace(made["id"], "file-" + "a" * 26))
            theirs = await other.ask("GET", path)
            assert theirs.status == mine.status == 404
            shown = theirs.json["error"]["message"].replace(made["id"], "file-" + "a" * 26)
            assert shown == mine.json["error"]["message"]
        assert (await other.ask("DELETE", f"{FILES}/{made['id']}")).status == 404
        assert await other.list() == []
        answer = await other.ask("GET", FILES, query=f"after={made['id']}")
        error = answer.json["error"]
        assert (answer.status, error["code"], error["param"]) == (404, "file_not_found", "after")

    async def test_paths_and_methods(self, cabinet: Cabinet) -> None:
        for path in (FILES + "/", f"{FILES}/file-a/", f"{FILES}/a/contents", f"{FILES}/a/b/c"):
            answer = await cabinet.ask("GET", path)
            assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
        answer = await cabinet.ask("PATCH", FILES)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST")
        answer = await cabinet.ask("POST", f"{FILES}/file-a")
        assert answer.headers["allow"] == "DELETE, GET, HEAD"
