"""The demo's client: one task through the REST API, as any client would do it."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import aiohttp

from gateway_cli.local.errors import LocalRunError

SAMPLE_INPUT = {
    "prompt": "A paper boat sails across a calm lake at sunrise",
    "reference_image_urls": ["https://example.com/paper-boat.png"],
    "duration_seconds": 5,
}
POLL_SECONDS = 0.25
_read_json = partial(json.loads, parse_float=Decimal)  # money is no float
_TIMEOUT = aiohttp.ClientTimeout(total=30)


class TaskFailedError(LocalRunError):
    """The task did not end as it should; `process` is where to look first."""

    def __init__(self, text: str, process: str) -> None:
        self.process = process
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """A completed task as its client sees it."""

    id: str
    video_url: str
    cost: Decimal


class TaskClient:
    """Creates and polls tasks of one model with one API key; use it as a context manager."""

    def __init__(self, base_url: str, service: str, model: str, api_key: str) -> None:
        self._url = f"{base_url}/api/v1/{service}/reference_to_video"
        self._model = model
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {api_key}"}, timeout=_TIMEOUT
        )
        self._plain = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def __aenter__(self) -> "TaskClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._plain.close()

    async def create(self, callback_url: str | None = None) -> str:
        """Creates a task and returns its id.

        Raises:
            TaskFailedError: if the API does not answer 202.
        """
        asked = {"model": self._model, **SAMPLE_INPUT}
        if callback_url:
            asked["callback_url"] = callback_url
        status, body = await self._call("POST", self._url, asked)
        if status != 202:
            raise TaskFailedError(f"POST {self._url} answers {status}: {body}", "api")
        return str(body["id"])

    async def wait_finished(
        self, task_id: str, timeout_seconds: float, on_poll: Callable[[str], None]
    ) -> FinishedTask:
        """Polls until the task ends; `on_poll` gets every status.

        Raises:
            TaskFailedError: if it fails or takes longer than `timeout_seconds`.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            status, body = await self._call("GET", f"{self._url}/{task_id}")
            if status != 200:
                raise TaskFailedError(f"GET {self._url}/{task_id} answers {status}: {body}", "api")
            on_poll(str(body["status"]))
            if body["status"] == "completed":
                url = str(body["videos"][0]["url"])
                return FinishedTask(id=task_id, video_url=url, cost=body["usage"]["cost"])
            if body["status"] == "failed":
                raise TaskFailedError(f"the task failed: {body['error']}", "operator")
            if time.monotonic() > deadline:
                text = f"the task has not ended after {timeout_seconds:.0f} s"
                raise TaskFailedError(text, "operator")
            await asyncio.sleep(POLL_SECONDS)

    async def download(self, url: str) -> bytes:
        """The video, fetched without the API key.

        Raises:
            TaskFailedError: if it cannot be had or is not an MP4.
        """
        async with self._plain.get(url) as answer:
            if answer.status != 200:
                raise TaskFailedError(f"GET {url} answers {answer.status}", "media")
            content = await answer.read()
        if not is_mp4(content):
            raise TaskFailedError(f"{url} holds no MP4: it begins {content[:16]!r}", "media")
        return content

    async def _call(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        try:
            async with self._session.request(method, url, json=body) as answer:
                return answer.status, await answer.json(content_type=None, loads=_read_json)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            text = f"{method} {url}: {error or type(error).__name__}"
            raise TaskFailedError(text, "api") from error


def is_mp4(content: bytes) -> bool:
    """Whether `content` begins as an ISO base media file does: a `ftyp` box of at least 8 bytes."""
    return content[4:8] == b"ftyp" and 8 <= int.from_bytes(content[:4], "big") <= len(content)
