"""Follows a task to its end and fetches its videos, and shows on standard error how far that is."""

import asyncio
import time
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from gateway_cli.progress import Reporter
from gateway_cli.rest.bars import open_transfers
from gateway_cli.rest.calls import Body
from gateway_cli.rest.client import TaskApi
from gateway_cli.rest.errors import RestError

FIRST_PAUSE, LAST_PAUSE = 0.25, 2.0
"""Seconds between two looks: the task is asked after less often the longer it takes."""
ENDED = ("completed", "failed")
SUFFIXES = (".mp4", ".webm", ".mov")


async def wait_ended(api: TaskApi, task_id: str, seconds: float) -> Body:
    """The task once it has ended, or as it is when `seconds` are over. RestError."""
    reporter = Reporter(Console(stderr=True, highlight=False))
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE
    task = await api.get(task_id)
    if task["status"] in ENDED or seconds <= 0:
        return task
    async with reporter.stage(f"Waiting for {task_id}"):
        while task["status"] not in ENDED:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(pause, left))
            pause = min(LAST_PAUSE, pause * 1.2)
            task = await api.get(task_id)
    return task


async def fetch_videos(api: TaskApi, task: Body, folder: Path) -> list[str]:
    """The paths of the task's videos in `folder`, which is made if there is none.

    Raises:
        RestError: one cannot be had or written; those before it are there.
    """
    try:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    except OSError as error:
        raise RestError(f"{folder} cannot be made: {error.strerror}") from error
    files = []
    with open_transfers() as progress:
        for number, video in enumerate(task["videos"], 1):
            suffix = PurePosixPath(urlsplit(video["url"]).path).suffix
            suffix = suffix if suffix in SUFFIXES else ".mp4"
            path = folder / f"{task['id']}-{number}{suffix}"
            row = progress.add_task(path.name, total=None)

            def show(here: int, total: int, row: Any = row) -> None:
                progress.update(row, completed=here, total=total or None)

            await api.download(video["url"], path, show)
            files.append(str(path))
    return files
