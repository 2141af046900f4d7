"""Files, Uploads and Batches as the contract has them, in memory, with faults on demand.

For the unit tests of `gatewayctl`, which has to cope with answers that get lost and connections
that break; that it works with the gateway itself is proven in `tests/integration`.
"""

import hashlib
import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gateway_core.api.key import mint_key
from tests.servers.server import WebServer

KEY = mint_key("Standard").plaintext


@dataclass
class StorageServer(WebServer):
    """The server. `faults` are taken in turn by the calls that they name."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_key: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    faults: deque[tuple[str, str]] = field(default_factory=deque)
    """Name of a call, and what becomes of it: `drop` before, `lose` the answer, `503`, `cut`."""

    def __post_init__(self) -> None:
        super().__init__()
        self._ids = itertools.count(1)

    def forget(self) -> None:
        for kept in (self.files, self.contents, self.uploads, self.parts, self.batches):
            kept.clear()
        self.by_key.clear()
        self.calls.clear()
        self.faults.clear()

    def count(self, call: str) -> int:
        return self.calls.count(call)

    def build(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        for method, path, name in (
            ("POST", "/v1/files", "create_file"),
            ("GET", "/v1/files", "list_files"),
            ("GET", "/v1/files/{id}", "get_file"),
            ("GET", "/v1/files/{id}/content", "content"),
            ("DELETE", "/v1/files/{id}", "delete_file"),
            ("POST", "/v1/uploads", "create_upload"),
            ("POST", "/v1/uploads/{id}/parts", "add_part"),
            ("POST", "/v1/uploads/{id}/complete", "complete"),
            ("POST", "/v1/uploads/{id}/cancel", "cancel_upload"),
            ("POST", "/v1/batches", "create_batch"),
            ("GET", "/v1/batches", "list_batches"),
            ("GET", "/v1/batches/{id}", "get_batch"),
            ("POST", "/v1/batches/{id}/cancel", "cancel_batch"),
        ):
            app.router.add_route(method, path, self._call(name))
        return app

    def add_file(self, content: bytes, **given: Any) -> dict[str, Any]:
        file = {
            "id": f"file-{next(self._ids)}",
            "object": "file",
            "bytes": len(content),
            "created_at": int(time.time()),
            "expires_at": None,
            "filename": "a.bin",
            "purpose": "user_data",
            "status": "processed",
            "status_details": None,
            **given,
        }
        self.files[file["id"]] = file
        self.contents[file["id"]] = content
        return file

    def add_batch(self, **given: Any) -> dict[str, Any]:
        ends = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling")
        batch = {
            "id": f"batch_{next(self._ids)}",
            "object": "batch",
            "status": "validating",
            "model": None,
            "errors": None,
            "input_file_id": "file-1",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": int(time.time()),
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": None,
            "cancelled_at": None,
            **{f"{name}_at": None for name in ends},
            **given,
        }
        self.batches[batch["id"]] = batch
        return batch

    def _call(self, name: str) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.calls.append(name)
            if request.headers.get("Authorization") != f"Bearer {KEY}":
                return _refuse(401, "invalid_api_key")
            fault = self.faults[0][1] if self.faults and self.faults[0][0] == name else ""
            if fault:
                self.faults.popleft()
            if fault == "503":
                return _refuse(503, "service_unavailable", {"Retry-After": "0"})
            if fault == "drop":
                return _hang_up(request)
            answer: web.StreamResponse = await getattr(self, f"_{name}")(request, fault)
            return _hang_up(request) if fault == "lose" else answer

        return handle

    async def _create_file(self, request: web.Request, fault: str) -> web.Response:
        form = await request.post()
        upload = form["file"]
        assert isinstance(upload, web.FileField)
        given = {"filename": upload.filename, "purpose": str(form["purpose"])}
        return web.json_response(self.add_file(upload.file.read(), **given))

    async def _list_files(self, request: web.Request, fault: str) -> web.Response:
        purpose = request.query.get("purpose")
        found = [f for f in reversed(self.files.values()) if purpose in (None, f["purpose"])]
        return _page(request, found)

    async def _get_file(self, request: web.Request, fault: str) -> web.Response:
        file = self.files.get(request.match_info["id"])
        return web.json_response(file) if file else _refuse(404, "file_not_found")

    async def _delete_file(self, request: web.Request, fault: str) -> web.Response:
        file = self.files.pop(request.match_info["id"], None)
        if file is None:
            return _refuse(404, "file_not_found")
        return web.json_response({"id": file["id"], "object": "file", "deleted": True})

    async def _content(self, request: web.Request, fault: str) -> web.StreamResponse:
        content = self.contents[request.match_info["id"]]
        begin = request.http_range.start or 0
        rest = content[begin:]
        headers = {"Content-Length": str(len(rest))}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        response = web.StreamResponse(status=206 if begin else 200, headers=headers)
        await response.prepare(request)
        await response.write(rest[: len(rest) // 2] if fault == "cut" else rest)
        return _hang_up(request) if fault == "cut" else response

    async def _create_upload(self, request: web.Request, fault: str) -> web.Response:
        key = request.headers["Idempotency-Key"]
        if key not in self.by_key:
            upload = {
                **(await request.json()),
                "id": f"upload_{next(self._ids)}",
                "expires_at": int(time.time()) + 3600,
                "status": "pending",
                "file": None,
            }
            self.uploads[upload["id"]] = upload
            self.by_key[key] = upload["id"]
        upload = self.uploads[self.by_key[key]]
        return web.json_response({**upload, "status": "pending", "file": None})

    async def _add_part(self, request: web.Request, fault: str) -> web.Response:
        data = (await request.post())["data"]
        assert isinstance(data, web.FileField)
        upload_id = request.match_info["id"]
        if self.uploads[upload_id]["status"] != "pending":
            return _refuse(409, "upload_state_conflict", {"x-should-retry": "false"})
        part_id = f"part_{next(self._ids)}"
        self.parts[part_id] = (upload_id, data.file.read())
        return web.json_response({"id": part_id, "upload_id": upload_id})

    async def _complete(self, request: web.Request, fault: str) -> web.Response:
        body = await request.json()
        upload = self.uploads[request.match_info["id"]]
        if upload["file"] is not None:
            return web.json_response(upload)
        if upload["status"] != "pending":
            return _refuse(409, "upload_state_conflict", {"x-should-retry": "false"})
        content = b"".join(self.parts[part][1] for part in body["part_ids"])
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != body["md5"]:
            return _refuse(400, "md5_mismatch")
        upload["status"] = "completed"
        given = {"filename": upload["filename"], "purpose": upload["purpose"]}
        upload["file"] = self.add_file(content, **given)
        return web.json_response(upload)

    async def _cancel_upload(self, request: web.Request, fault: str) -> web.Response:
        upload = self.uploads.get(request.match_info["id"])
        if upload is None:
            return _refuse(404, "upload_not_found")
        upload["status"] = "cancelled"
        return web.json_response(upload)

    async def _create_batch(self, request: web.Request, fault: str) -> web.Response:
        key = request.headers["Idempotency-Key"]
        if key not in self.by_key:
            body = await request.json()
            batch = self.add_batch(
                input_file_id=body["input_file_id"], metadata=body.get("metadata")
            )
            self.by_key[key] = batch["id"]
        batch = self.batches[self.by_key[key]]
        if batch["input_file_id"] != (await request.json())["input_file_id"]:
            return _refuse(409, "idempotency_conflict", {"x-should-retry": "false"})
        return web.json_response(batch)

    async def _list_batches(self, request: web.Request, fault: str) -> web.Response:
        return _page(request, list(reversed(self.batches.values())))

    async def _get_batch(self, request: web.Request, fault: str) -> web.Response:
        """Each look finds the batch a step further."""
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            return _refuse(404, "batch_not_found")
        if batch["status"] == "in_progress":
            output = self.add_file(b'{"custom_id": "a"}\n', purpose="batch_output")
            batch |= {
                "status": "completed",
                "completed_at": int(time.time()),
                "output_file_id": output["id"],
                "request_counts": {"total": 1, "completed": 1, "failed": 0},
            }
        elif batch["status"] == "validating":
            batch["status"] = "in_progress"
        return web.json_response(batch)

    async def _cancel_batch(self, request: web.Request, fault: str) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        batch["status"] = "cancelling"
        return web.json_response(batch)


def _page(request: web.Request, found: list[dict[str, Any]]) -> web.Response:
    after, limit = request.query.get("after"), int(request.query["limit"])
    ids = [each["id"] for each in found]
    begin = ids.index(after) + 1 if after else 0
    page = found[begin : begin + limit]
    more = begin + limit < len(found)
    last = page[-1]["id"] if page else None
    return web.json_response({"object": "list", "data": page, "has_more": more, "last_id": last})


def _refuse(status: int, code: str, headers: dict[str, str] | None = None) -> web.Response:
    error = {"message": f"No: {code}.", "type": "x", "param": None, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


def _hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()
