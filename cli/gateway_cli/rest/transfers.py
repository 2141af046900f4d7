"""A File's bytes to a local file, resumed where an earlier attempt was cut off; progress bars."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import aiohttp
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)

from gateway_cli.machine import try_lock
from gateway_cli.rest.access import make_path
from gateway_cli.rest.client import ATTEMPTS, Body, RestApi
from gateway_cli.rest.errors import RestError

PIECE = 1 << 18
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


def open_bars() -> Progress:
    """Return progress bars of bytes on standard error, where that is a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


async def fetch_file(api: RestApi, file: Body, path: Path, report: Callable[[str], None]) -> None:
    """Write the File's bytes to `path`, which is there whole or not at all.

    What came before a break is kept beside it, under a name that has the File's id in it. A File
    never changes, so the rest of it can be asked for at any later time.

    Raises:
        RestError: it cannot be had whole, or not be written.
    """
    partial = path.with_name(f".{path.name}.{file['id']}.part")
    try:
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        with partial.open("ab") as opened, open_bars() as progress:
            if not try_lock(opened):
                raise RestError(f"another command is fetching {path} just now")
            row = progress.add_task(path.name, total=file["bytes"])
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await _fetch_rest(
                        api, file, opened, lambda here: progress.update(row, completed=here)
                    )
                    break
                except RestError as error:
                    if error.retry_after is None or attempt == ATTEMPTS:
                        raise
                    report(f"{str(error).partition(chr(10))[0]}; going on")
                    await asyncio.sleep(error.retry_after)
            if opened.tell() != file["bytes"]:
                opened.truncate(0)
                raise RestError(f"{path.name} is not of the size that the File has")
            partial.replace(path)
    except OSError as error:
        raise RestError(f"{path} cannot be written: {error.strerror}") from error


async def _fetch_rest(
    api: RestApi, file: Body, opened: BinaryIO, show: Callable[[int], None]
) -> None:
    """Append what is missing. RestError, with `retry_after` where it broke off."""
    here, whole = opened.tell(), int(file["bytes"])
    if here > whole:
        opened.truncate(0)
        here = opened.seek(0)
    show(here)
    if here == whole:
        return
    headers = {"Range": f"bytes={here}-"} if here else {}
    path = make_path("v1/files", file["id"], "content")
    async with api.open("GET", path, headers=headers) as answer:
        if here and not _continues(answer, here, whole):
            opened.truncate(0)
            here = opened.seek(0)
        async for piece in answer.content.iter_chunked(PIECE):
            await asyncio.to_thread(opened.write, piece)
            here += len(piece)
            show(here)


def _continues(answer: aiohttp.ClientResponse, here: int, whole: int) -> bool:
    """Return whether the answer begins where the bytes that are there end; else it begins anew."""
    if answer.status == 200:
        return False
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if match is None or (int(match[1]), int(match[2])) != (here, whole):
        raise RestError("the API answers with another range than was asked for")
    return True
