"""The task API as one key sees it, and the media host, which never sees the key."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

from gateway_cli.rest.errors import RestError, read_refusal

CALL_SECONDS = 30.0
ATTEMPTS = 4
LONGEST_PAUSE = 60.0
CHUNK = 1 << 16

Body = dict[str, Any]


class TaskApi:
    """Creates and reads tasks of one operation; use it as a context manager.

    What may be repeated is repeated: reads, and creates with their Idempotency-Key, after errors
    of the server and after rate limits, as long as the server says how long to wait.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        operation: str,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/api/v1/{operation}"
        self._say = say
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        headers = {"Authorization": f"Bearer {api_key}"}
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)
        media_timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
        self._media = aiohttp.ClientSession(timeout=media_timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._media.close()

    async def create(self, body: Body, idempotency_key: str) -> Body:
        """The acceptance: `id`, `status`, and `task_replayed` where the key was used before.

        Raises:
            RestError: it is refused, or still not taken after some attempts.
        """
        headers = {"Idempotency-Key": idempotency_key}
        return await self._insist("POST", self._url, headers, body)

    async def get(self, task_id: str) -> Body:
        """The task as it is now. RestError."""
        return await self._insist("GET", f"{self._url}/{task_id}", {})

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

    async def _insist(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | None = None
    ) -> Body:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._call(method, url, headers, body)
            except RestError as error:
                if error.retry_after is None or attempt == ATTEMPTS:
                    raise
                pause = min(LONGEST_PAUSE, error.retry_after)
                self._say(f"{str(error).partition(chr(10))[0]}; once more in {pause:.0f} s")
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _call(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | None
    ) -> Body:
        try:
            async with self._session.request(
                method, url, headers=headers, json=body, allow_redirects=False
            ) as answer:
                content = await answer.read()
                status, told = answer.status, answer.headers
                found = await _read_json(answer, content)
        except (aiohttp.ClientError, TimeoutError) as error:
            text = f"{method} {url} is not answered: {error or type(error).__name__}"
            raise RestError(
                f"{text}\n  is GATEWAY_BASE_URL right, and the gateway up?", retry_after=1.0
            ) from error
        if status not in (200, 202):
            raise read_refusal(status, told, found)
        if not isinstance(found, dict) or "id" not in found:
            raise RestError(f"{url} answers {status} with something that is no task")
        return found


async def _read_json(answer: aiohttp.ClientResponse, content: bytes) -> Any:
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        return await answer.json(content_type=None) if content else None
    return None
