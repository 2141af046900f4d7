"""The sample task, and its video; the loopback check of the local run."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway_cli.local.run import is_loopback
from gateway_cli.rest.client import RestApi
from gateway_cli.rest.sample import (
    SampleFailed,
    create_sample,
    fetch_video,
    is_mp4,
    wait_completed,
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x00\x00\x00\x10ftypisom\x00\x00\x02\x00", True),
        (b"\x00\x00\x00\x10moovisom\x00\x00\x02\x00", False),
        (b"\x00\x00\x00\x40ftypisom\x00\x00\x02\x00", False),
        (b"<html>ftyp", False),
        (b"", False),
    ],
)
def test_mp4_begins_with_a_whole_ftyp_box(content: bytes, expected: bool) -> None:
    assert is_mp4(content) is expected


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://127.0.0.1:6443", True),
        ("https://127.8.0.1", True),
        ("https://[::1]:6443", True),
        ("https://localhost:6443", True),
        ("https://10.0.0.1:6443", False),
        ("https://localhost.example.com", False),
        ("https://example.com/127.0.0.1", False),
        ("", False),
    ],
)
def test_only_loopback_is_this_machine(server: str, expected: bool) -> None:
    assert is_loopback(server) is expected


MP4 = b"\x00\x00\x00\x10ftypisom\x00\x00\x02\x00"


class Api:
    """A task API that gives the answers it is told, one a poll, and the video."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = [{"status": "processing"}]
        self.video = MP4
        self.created: dict[str, Any] = {}
        self.media_headers: Mapping[str, str] = {}

    async def create(self, request: web.Request) -> web.Response:
        if request.headers["Authorization"] != "Bearer key":
            return web.json_response({"error": "no"}, status=401)
        self.created = await request.json()
        return web.json_response({"id": "task_1", "status": "processing"}, status=202)

    async def show(self, request: web.Request) -> web.Response:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer["status"] == "completed":
            answer = answer | {"videos": [{"url": str(request.url.with_path("/v.mp4"))}]}
        return web.json_response({"id": "task_1"} | answer)

    async def serve(self, request: web.Request) -> web.Response:
        self.media_headers = dict(request.headers)
        return web.Response(body=self.video)


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, str]]:
    api = Api()
    app = web.Application()
    app.router.add_post("/api/v1/sim/reference_to_video", api.create)
    app.router.add_get("/api/v1/sim/reference_to_video/task_1", api.show)
    app.router.add_get("/v.mp4", api.serve)
    async with TestServer(app, host="127.0.0.1") as server:
        yield api, str(server.make_url("")).rstrip("/")


async def run_sample(url: str, key: str, folder: Path, seen: list[str]) -> dict[str, Any]:
    async with RestApi(url, key) as client:
        path = await create_sample(client, "sim", "model")
        task = await wait_completed(client, path, 0.5, seen.append)
        await fetch_video(client, task, folder / "video.mp4")
        return task


async def test_task_is_followed_to_its_video(api: tuple[Api, str], tmp_path: Path) -> None:
    served, url = api
    served.answers += [{"status": "completed", "usage": {"cost": 0.5}}]
    seen: list[str] = []
    task = await run_sample(url, "key", tmp_path, seen)
    assert (tmp_path / "video.mp4").read_bytes() == MP4
    assert served.created["model"] == "model"
    assert seen == ["processing", "completed"]
    assert task["usage"]["cost"] == 0.5
    # the media host is another origin: it must not get the key
    assert "Authorization" not in served.media_headers


@pytest.mark.parametrize(
    ("key", "answer", "video", "blamed", "text"),
    [
        ("wrong", {}, MP4, "api", "401"),
        ("key", {"status": "failed", "error": "no luck"}, MP4, "operator", "no luck"),
        ("key", {"status": "processing"}, MP4, "operator", "has not ended"),
        ("key", {"status": "completed", "usage": {"cost": 1}}, b"<html>", "media", "no MP4"),
    ],
)
async def test_failure_names_the_process_to_look_at(
    api: tuple[Api, str],
    tmp_path: Path,
    key: str,
    answer: dict[str, Any],
    video: bytes,
    blamed: str,
    text: str,
) -> None:
    served, url = api
    served.answers, served.video = [answer], video
    with pytest.raises(SampleFailed, match=text) as caught:
        await run_sample(url, key, tmp_path, [])
    assert caught.value.process == blamed
