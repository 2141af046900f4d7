"""The task API as one key sees it, and the media host, which never sees the key."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

import aiohttp

from gateway_cli.rest.calls import Body, RestCalls
from gateway_cli.rest.errors import RestError

CHUNK = 1 << 16


class TaskApi:
    """Creates and reads tasks of one operation; use it as a context manager.

    What may be repeated is repeated: reads, and creates with their Idempotency-Key.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        operation: str,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = f"/api/v1/{operation}"
        self._calls = RestCalls(base_url, api_key, say)
        media_timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
        self._media = aiohttp.ClientSession(timeout=media_timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._calls.__aexit__(*reason)
        await self._media.close()

    async def create(self, body: Body, idempotency_key: str) -> Body:
        """The acceptance: `id`, `status`, and `task_replayed` where the key was used before.

        Raises:
            RestError: it is refused, or still not taken after some attempts.
        """
        headers = {"Idempotency-Key": idempotency_key}
        return await self._calls.insist("POST", self._path, headers=headers, body=body)

    async def get(self, task_id: str) -> Body:
        """The task as it is now. RestError."""
        return await self._calls.insist("GET", f"{self._path}/{task_id}")

    async def download(self, url: str, path: Path, on_bytes: Callable[[int, int], None]) -> None:
        """Fetches an output to `path`, which is there whole or not at all.

        `on_bytes` gets how many are here, and how many there will be (0: not known).

        Raises:
            RestError: it cannot be had whole, or not be written.
        """
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            async with self._media.get(url) as answer:
                if answer.status != 200:
                    text = f"{url.partition('?')[0]} answers {answer.status}"
                    raise RestError(text, status=answer.status)
                total, here = answer.content_length or 0, 0
                with partial.open("wb") as file:
                    async for chunk in answer.content.iter_chunked(CHUNK):
                        await asyncio.to_thread(file.write, chunk)
                        here += len(chunk)
                        on_bytes(here, total)
            if total and here != total:
                raise RestError(f"{path.name} was cut off", retry_after=1.0)
            partial.replace(path)
        except (aiohttp.ClientError, TimeoutError) as error:
            text = f"{path.name} cannot be fetched: {error or type(error).__name__}"
            raise RestError(text, retry_after=1.0) from error
        except OSError as error:
            raise RestError(f"{path} cannot be written: {error.strerror}") from error
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
