"""One sample task from POST to its video, as `make demo` and `helm test` run it."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway_cli.rest.access import make_path, poll_ended
from gateway_cli.rest.client import Body, RestApi
from gateway_cli.rest.errors import RestError
from gateway_cli.session import CommandError

ACTION = "reference_to_video"
SAMPLE_INPUT = {
    "prompt": "A paper boat sails across a calm lake at sunrise",
    "reference_image_urls": ["https://example.com/paper-boat.png"],
    "duration_seconds": 5,
}
PAUSES = 0.25, 0.25


class SampleFailed(CommandError):
    """The task did not end as it should; `process` is where to look first."""

    def __init__(self, text: str, process: str) -> None:
        self.process = process
        super().__init__(text)


async def create_sample(
    api: RestApi, service: str, model: str, callback_url: str | None = None
) -> str:
    """Create a task and return its path. SampleFailed."""
    body: Body = {"model": model, **SAMPLE_INPUT}
    if callback_url:
        body["callback_url"] = callback_url
    path = make_path("api/v1", service, ACTION)
    with blame("api"):
        return f"{path}/{(await api.create(path, body, str(uuid.uuid4())))['id']}"


async def wait_completed(
    api: RestApi, path: str, seconds: float, on_poll: Callable[[str], None] = lambda _: None
) -> Body:
    """Return the task once it has completed; `on_poll` gets every status.

    Raises:
        SampleFailed: it fails or takes longer than `seconds`.
    """
    with blame("api"):
        task = await poll_ended(
            lambda: api.get(path), seconds, PAUSES, lambda task: on_poll(str(task["status"]))
        )
    if task["status"] == "failed":
        raise SampleFailed(f"the task failed: {task['error']}", "operator")
    if task["status"] != "completed":
        raise SampleFailed(f"the task has not ended after {seconds:.0f} s", "operator")
    return task


async def fetch_video(api: RestApi, task: Body, path: Path) -> tuple[str, int]:
    """Return the URL and the size of the task's video, fetched to `path` without the API key.

    Raises:
        SampleFailed: it cannot be had or is not an MP4.
    """
    url = str(task["videos"][0]["url"])
    with blame("media"):
        await api.download(url, path, lambda here, total: None)
    content = await asyncio.to_thread(path.read_bytes)
    if not is_mp4(content):
        raise SampleFailed(f"{url} holds no MP4: it begins {content[:16]!r}", "media")
    return url, len(content)


def is_mp4(content: bytes) -> bool:
    """Return whether `content` begins with the `ftyp` box of an ISO base media file."""
    return content[4:8] == b"ftyp" and 8 <= int.from_bytes(content[:4], "big") <= len(content)


@contextmanager
def blame(process: str) -> Iterator[None]:
    """Turn a refusal into a SampleFailed that names `process`."""
    try:
        yield
    except RestError as error:
        raise SampleFailed(str(error), process) from error
