"""`gatewayctl files|uploads|batches`: each file whole and once, over every interruption."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway_cli.__main__ import app
from gateway_cli.rest import batches, client, uploading
from gateway_cli.rest.uploading import list_pending
from gateway_core.api.key import mint_key
from tests.servers.storageserver import KEY, StorageServer

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def running() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


@pytest.fixture
def server(
    running: StorageServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> StorageServer:
    running.forget()
    monkeypatch.setenv("GATEWAY_BASE_URL", running.url)
    monkeypatch.setenv("GATEWAY_API_KEY", KEY)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(client, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(batches, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(uploading, "PART_BYTES", 1000)
    return running


@pytest.fixture
def run(server: StorageServer) -> Run:
    """Runs a command; its document where it is asked for as JSON."""

    def run(*arguments: object, code: int = 0) -> Any:
        words = [*map(str, arguments), *(["-o", "json"] if code == 0 else [])]
        result: Result = CliRunner().invoke(app, words)
        assert result.exit_code == code, (result.output, result.exception)
        return json.loads(result.stdout) if code == 0 else " ".join(result.stderr.split())

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of ten and a half parts."""
    path = tmp_path / "big.bin"
    path.write_bytes(os.urandom(10_500))
    return path


def test_small_file_is_uploaded_in_one_call(
    run: Run, server: StorageServer, tmp_path: Path
) -> None:
    path = tmp_path / 'ä "small".jsonl'
    path.write_bytes(b"{}\n" * 300)
    file = run("files", "upload", path, "--purpose", "batch")
    assert (file["filename"], file["purpose"], file["bytes"]) == ('ä "small".jsonl', "batch", 900)
    assert server.contents[file["id"]] == path.read_bytes()
    assert server.calls == ["create_file"]


def test_large_file_is_uploaded_in_parts(run: Run, server: StorageServer, source: Path) -> None:
    file = run("files", "upload", source)
    assert server.contents[file["id"]] == source.read_bytes()
    assert server.count("add_part") == 11
    assert list(list_pending()) == []


def test_small_file_is_uploaded_in_parts_on_request(
    run: Run, server: StorageServer, tmp_path: Path
) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"abc")
    file = run("uploads", "send", path, "--name", "other.txt", "--expires-after", "1h")
    assert (server.contents[file["id"]], file["filename"]) == (b"abc", "other.txt")
    (upload,) = server.uploads.values()
    assert upload["expires_after"] == {"anchor": "created_at", "seconds": 3600}


@pytest.mark.parametrize("fault", ["drop", "lose", "503"])
@pytest.mark.parametrize("call", ["create_upload", "add_part", "complete"])
def test_broken_call_is_retried_and_makes_one_file(
    run: Run, server: StorageServer, source: Path, call: str, fault: str
) -> None:
    server.faults.append((call, fault))
    file = run("files", "upload", source)
    assert server.contents[file["id"]] == source.read_bytes()
    assert len(server.files) == len(server.uploads) == 1


def test_interrupted_upload_resumes(
    run: Run, server: StorageServer, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "AT_ONCE", 1)
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    added = StorageServer._add_part

    async def break_off(self: StorageServer, request: Any, fault: str) -> Any:
        if self.count("add_part") == 5:
            self.faults.append(("add_part", "drop"))
        return await added(self, request, fault)

    with monkeypatch.context() as broken:
        broken.setattr(StorageServer, "_add_part", break_off)
        run("files", "upload", source, code=5)
    (pending,) = run("uploads", "list")["items"]
    assert (pending["parts_there"], pending["parts"], pending["bytes"]) == (5, 11, 10_500)
    assert KEY not in next(list_pending()).path.read_text()
    before = server.count("add_part")
    file = run("files", "upload", source)
    assert server.count("add_part") - before == 6
    assert server.contents[file["id"]] == source.read_bytes()
    assert len(server.uploads) == 1
    assert run("uploads", "list")["items"] == []


@pytest.mark.parametrize("change", ["content", "purpose", "expiry", "ended"])
def test_changed_source_starts_a_new_upload(
    run: Run, server: StorageServer, source: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(client, "ATTEMPTS", 1)
    server.faults.append(("complete", "drop"))
    run("files", "upload", source, code=5)
    (first,) = server.uploads.values()
    purpose = "user_data"
    match change:
        case "content":
            source.write_bytes(os.urandom(10_500))
        case "purpose":
            purpose = "batch"
        case "expiry":
            state = next(list_pending())
            state.expires_at = time.time() + 30
            state.save()
        case "ended":
            first["status"] = "expired"
    file = run("files", "upload", source, "--purpose", purpose)
    assert server.contents[file["id"]] == source.read_bytes()
    assert len(server.uploads) == 2


def test_source_that_changes_during_the_upload_makes_no_file(
    run: Run, server: StorageServer, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = StorageServer._add_part

    async def touch(self: StorageServer, request: Any, fault: str) -> Any:
        os.utime(source, (1, 1))
        return await added(self, request, fault)

    monkeypatch.setattr(StorageServer, "_add_part", touch)
    assert "changed while" in run("files", "upload", source, code=4)
    assert server.files == {}


def test_refused_upload_leaves_no_state(
    run: Run, server: StorageServer, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_API_KEY", mint_key("Standard").plaintext)
    assert "GATEWAY_API_KEY" in run("files", "upload", source, code=4)
    assert list(list_pending()) == []


def test_create_with_lost_answer_is_not_repeated(
    run: Run, server: StorageServer, tmp_path: Path
) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"abc")
    server.faults.append(("create_file", "lose"))
    run("files", "upload", path, code=5)
    assert server.count("create_file") == 1


def test_files_are_listed_page_by_page_and_by_purpose(
    run: Run, server: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_cli.rest.files.PAGE", 3)
    for number in range(8):
        server.add_file(b"x", purpose="batch" if number % 2 else "user_data")
    found = run("files", "list")["items"]
    assert [file["id"] for file in found] == list(reversed(server.files))
    assert server.count("list_files") == 3
    assert len(run("files", "list", "--limit", "2")["items"]) == 2
    assert {f["purpose"] for f in run("files", "list", "--purpose", "batch")["items"]} == {"batch"}


def test_file_is_shown_and_deleted_once(run: Run, server: StorageServer) -> None:
    file = server.add_file(b"x")
    assert run("files", "get", file["id"]) == file
    assert run("files", "delete", file["id"], "--yes")["deleted"] is True
    assert "was deleted" in run("files", "delete", file["id"], "--yes", code=4)


def test_interrupted_download_resumes(
    run: Run, server: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3_000_000)
    file = server.add_file(content, filename="../../evil.bin")
    monkeypatch.setattr("gateway_cli.rest.transfers.ATTEMPTS", 1)
    server.faults.append(("content", "cut"))
    run("files", "download", file["id"], "--to", tmp_path, code=5)
    (partial,) = tmp_path.glob(".evil.bin.*.part")
    assert 0 < partial.stat().st_size < len(content)
    found = run("files", "download", file["id"], "--to", tmp_path)
    assert found["path"] == str(tmp_path / "evil.bin")
    assert (tmp_path / "evil.bin").read_bytes() == content
    assert not partial.exists()
    assert "--force" in run("files", "download", file["id"], "--to", tmp_path, code=4)
    run("files", "download", file["id"], "--to", tmp_path, "--force")


def test_download_resumes_by_itself(run: Run, server: StorageServer, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    file = server.add_file(content)
    server.faults.append(("content", "cut"))
    server.faults.append(("content", "503"))
    run("files", "download", file["id"], "--to", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == content


def test_download_to_a_name_that_ends_in_a_slash_creates_the_folder(
    run: Run, server: StorageServer, tmp_path: Path
) -> None:
    file = server.add_file(b"abc", filename="clip.mp4")
    found = run("files", "download", file["id"], "--to", f"{tmp_path / 'videos'}/")
    assert found["path"] == str(tmp_path / "videos" / "clip.mp4")
    assert (tmp_path / "videos" / "clip.mp4").read_bytes() == b"abc"


def test_download_of_another_size_makes_no_file(
    run: Run, server: StorageServer, tmp_path: Path
) -> None:
    file = server.add_file(b"abc", bytes=2)
    assert "size" in run("files", "download", file["id"], "--to", tmp_path / "b", code=4)
    assert not (tmp_path / "b").exists()


def test_cancelled_upload_leaves_no_state(
    run: Run, server: StorageServer, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as once:
        once.setattr(client, "ATTEMPTS", 1)
        server.faults.append(("complete", "drop"))
        run("files", "upload", source, code=5)
    (pending,) = run("uploads", "list")["items"]
    assert run("uploads", "cancel", pending["id"])["status"] == "cancelled"
    assert run("uploads", "list")["items"] == []
    run("uploads", "cancel", "upload_none", code=4)


def test_batch_runs_from_a_local_file_to_its_output(
    run: Run, server: StorageServer, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"{}\n")
    batch = run(
        *("batches", "create", path, "--metadata", "team=red", "--download", tmp_path / "results")
    )
    assert (batch["status"], batch["metadata"]) == ("completed", {"team": "red"})
    assert batch["files"] == [str(tmp_path / "results" / f"{batch['id']}_output.jsonl")]
    assert Path(batch["files"][0]).read_bytes() == b'{"custom_id": "a"}\n'
    (file, _) = server.files.values()
    assert (file["purpose"], file["id"]) == ("batch", batch["input_file_id"])


def test_batch_is_made_once_for_a_key(run: Run, server: StorageServer) -> None:
    file = server.add_file(b"{}", purpose="batch")
    server.faults.append(("create_batch", "lose"))
    first = run("batches", "create", file["id"])
    again = run("batches", "create", file["id"], "--idempotency-key", first["idempotency_key"])
    assert again["id"] == first["id"]
    assert len(server.batches) == 1
    run("batches", "create", "nothing-here", code=2)
    run("batches", "create", file["id"], "--metadata", "no-sign", code=2)


@pytest.mark.parametrize("call", ["create_upload", "add_part", "complete", "create_batch"])
def test_local_file_becomes_one_file_and_one_batch_for_a_key(
    run: Run,
    server: StorageServer,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    again = ("batches", "create", source, "--idempotency-key", "mine")
    with monkeypatch.context() as once:
        once.setattr(client, "ATTEMPTS", 1)
        server.faults.append((call, "lose"))
        assert run(*again, code=5)
    batch = run(*again)
    assert run(*again)["id"] == batch["id"]
    # nor where nothing is known of the first try
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(source.parent / "elsewhere"))
        assert "give the File's id" in run(*again, code=4)
    assert (len(server.files), len(server.uploads), len(server.batches)) == (1, 1, 1)
    assert server.contents[batch["input_file_id"]] == source.read_bytes()
    assert list(list_pending()) == []
    source.write_bytes(source.read_bytes()[::-1])
    assert "idempotency_conflict" in run(*again, code=4)


def test_batch_is_followed_listed_and_fetched(
    run: Run, server: StorageServer, tmp_path: Path
) -> None:
    batch = server.add_batch()
    run("batches", "wait", batch["id"], "--timeout", "0", code=3)
    assert run("batches", "wait", batch["id"])["status"] == "completed"
    fetched = run("batches", "download", batch["id"], "--to", tmp_path)
    assert len(fetched["files"]) == 1
    assert [each["id"] for each in run("batches", "list")["items"]] == [batch["id"]]
    assert run("batches", "get", batch["id"])["output_file_id"]
    assert "30 days" in run("batches", "get", "batch_none", code=4)


def test_exit_code_says_how_a_batch_ended(run: Run, server: StorageServer) -> None:
    errors = [
        {"code": "model_not_found", "message": "No model.", "param": "body.model", "line": 2},
        {"code": "invalid_json_line", "message": "Line 9 is no JSON.", "param": None, "line": 9},
        {"code": "empty_file", "message": "Empty.", "param": None, "line": None},
    ]
    failed = server.add_batch(status="failed", errors={"object": "list", "data": errors})
    run("batches", "get", failed["id"], code=1)
    shown = CliRunner().invoke(app, ["batches", "get", failed["id"]])
    for text in ("Line 2: No model.", "  Line 9 is no JSON.", "  Empty."):
        assert text in shown.stdout
    under_way = server.add_batch()
    assert run("batches", "cancel", under_way["id"])["status"] == "cancelling"
    run("batches", "wait", under_way["id"], "--timeout", "0", code=3)
    assert "follows it" in run("batches", "download", under_way["id"], code=4)
