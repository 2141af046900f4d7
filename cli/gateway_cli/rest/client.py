"""The REST API as one key sees it, and the media host, which never sees the key.

What may be repeated is repeated (reads, and creates with their Idempotency-Key), and refusals are
explained.
"""

import asyncio
import contextlib
import io
import json
import os
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp

from gateway_cli.rest.errors import RestError, read_refusal
from gateway_core.egress.connector import use_proxy
from gateway_core.failures import describe_failure

CALL_SECONDS = 30.0
TRANSFER_SECONDS = 600.0
"""For a call that carries bytes: 8 MiB over the slowest line that is of any use."""
CALL_TIMEOUT = aiohttp.ClientTimeout(total=CALL_SECONDS)
STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
"""For a body that is read as it comes: a minute may pass between two pieces of it."""
ATTEMPTS = 4
LONGEST_PAUSE = 60.0
CHUNK = 1 << 16

Body = dict[str, Any]


class RestApi:
    """One API with one key; use it as a context manager.

    Errors of the server and rate limits are waited out, as long as the server says how long, with a
    line to `report`. Every method raises RestError.
    """

    def __init__(
        self, base_url: str, api_key: str, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.key_id = api_key[:11]
        """The part of the key that tells it from others, and opens nothing."""
        self._key = api_key
        self._report = report
        self._session = aiohttp.ClientSession(middlewares=[use_proxy])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, member: str = "id") -> Body:
        """Return the object at `path` as it is now; it has `member`."""
        return await self._retry("GET", path, member=member)

    async def probe(self, path: str) -> int:
        """Return the status of a GET without the key."""
        url = self.base_url + path
        with _explaining("GET", url):
            async with self._session.get(
                url, timeout=CALL_TIMEOUT, allow_redirects=False
            ) as answer:
                return answer.status

    async def read(self, path: str) -> bytes:
        """Return the bytes at `path`; for small contents."""
        async with self.open("GET", path) as answer:
            content: bytes = await answer.read()
            return content

    async def delete(self, path: str) -> Body:
        """Delete the object at `path`; return the API's answer."""
        return await self._retry("DELETE", path)

    async def post(self, path: str, body: Body, *, seconds: float = CALL_SECONDS) -> Body:
        """Return the answer to an action that may be repeated, such as a cancellation."""
        return await self._retry("POST", path, json=body, seconds=seconds)

    async def create(self, path: str, body: Body, idempotency_key: str) -> Body:
        """Return the created object; the same one for the same key."""
        headers = {"Idempotency-Key": idempotency_key}
        return await self._retry("POST", path, headers=headers, json=body)

    async def send_file(
        self,
        path: str,
        field: str,
        content: bytes,
        name: str,
        *,
        fields: Mapping[str, str] | None = None,
        repeat: bool = True,
    ) -> Body:
        """Return the object made of a form with these bytes and fields.

        `repeat` False: repeated only where it is certain that none was made.
        """

        def form() -> aiohttp.FormData:
            data = aiohttp.FormData(fields or {}, quote_fields=False)
            # quoted fields would send a name in percent signs, which servers take as it stands
            plain = "".join("_" if unicodedata.category(sign) == "Cc" else sign for sign in name)
            # a view on the bytes: bare ones of this size are warned of
            data.add_field(
                field,
                io.BytesIO(content),
                filename=PurePath(plain).name,
                content_type="application/octet-stream",
            )
            return data

        return await self._retry("POST", path, form=form, seconds=TRANSFER_SECONDS, repeat=repeat)

    async def list_items(self, path: str, page: int, query: str = "") -> AsyncIterator[Body]:
        """Yield all objects of a list, newest first, `page` at a call; `query` begins with `&`."""
        after = ""
        while True:
            found = await self._retry("GET", f"{path}?limit={page}{query}{after}", member="data")
            for item in found["data"]:
                yield item
            if not found.get("has_more") or not found.get("last_id"):
                return
            # a page may have nothing of what is looked for, and still not be the last
            after = f"&after={found['last_id']}"

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        timeout: aiohttp.ClientTimeout = STREAM_TIMEOUT,  # noqa: ASYNC109 - aiohttp's
        **sent: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer to one request with the key.

        Raises:
            RestError: it is refused, does not come, or breaks off while the body of this runs.
        """
        url = self.base_url + path
        sent["headers"] = {"Authorization": f"Bearer {self._key}", **headers}
        with _explaining(method, url):
            # a redirect or the media host must not get the key
            call = self._session.request(
                method, url, timeout=timeout, allow_redirects=False, **sent
            )
            async with call as answer:
                if answer.status not in (200, 202, 206):
                    raise read_refusal(answer.status, answer.headers, await _read_json(answer))
                yield answer

    async def download(self, url: str, path: Path, on_bytes: Callable[[int, int], None]) -> None:
        """Fetch an output, without the key, to `path`, which is there whole or not at all.

        `on_bytes` gets how many are here, and how many there will be (0: not known).
        """
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            async with self._session.get(url, timeout=STREAM_TIMEOUT) as answer:
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
            text = f"{path.name} cannot be fetched: {describe_failure(error)}"
            raise RestError(text, retry_after=1.0) from error
        except OSError as error:
            raise RestError(f"{path} cannot be written: {error.strerror}") from error
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    async def stream_chat(self, body: Body) -> AsyncIterator[Body]:
        """Yield the chunks of a chat completion as they come, the last of them with the usage.

        Raises RestError, also for an error in the middle of the stream.
        """
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self.open("POST", "/v1/chat/completions", json=asked) as answer:
            async for line in answer.content:
                data = line.removeprefix(b"data: ").strip()
                if not line.startswith(b"data: ") or data == b"[DONE]":
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    raise RestError(f"the answer breaks off: {chunk['error']['message']}")
                yield chunk

    async def get_price(self, action: str, model: str) -> Body | None:
        """Return the entry of the price list for a model, None where it has none."""
        query = urlencode({"action": action, "model": model})
        path = f"/api/v1/price_schedules?{query}"
        found = await self._retry("GET", path, member="price_schedules")
        entries = found["price_schedules"]
        return entries[0] if entries else None

    async def _retry(
        self,
        method: str,
        path: str,
        *,
        form: Callable[[], aiohttp.FormData] | None = None,
        seconds: float = CALL_SECONDS,
        repeat: bool = True,
        member: str = "id",
        **sent: Any,
    ) -> Body:
        """Return the answer's object, which has `member`.

        Each attempt has `seconds`; it sends `headers` and `json`, or the form that `form` makes.
        `repeat` False: a call whose outcome is not known is not made again.

        Raises:
            RestError: it is refused, or still not taken after some attempts.
        """
        limit = aiohttp.ClientTimeout(total=seconds)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                data = form() if form else None
                async with self.open(method, path, data=data, timeout=limit, **sent) as answer:
                    return _check(await _read_json(answer), self.base_url + path, member)
            except RestError as error:
                unknown = error.status is None or error.status >= 500
                if error.retry_after is None or attempt == ATTEMPTS or (unknown and not repeat):
                    raise
                pause = min(LONGEST_PAUSE, error.retry_after)
                self._report(f"{str(error).partition(chr(10))[0]}; once more in {pause:.0f} s")
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


@contextlib.contextmanager
def _explaining(method: str, url: str) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise RestError(
            f"{method} {url} is not answered: {describe_failure(error)}\n"
            "  is GATEWAY_BASE_URL right, and the gateway up?",
            retry_after=1.0,
        ) from error


def _check(found: Any, url: str, member: str) -> Body:
    if not isinstance(found, dict) or member not in found:
        raise RestError(f"{url} answers with something that is no answer of this API")
    return found


async def _read_json(answer: aiohttp.ClientResponse) -> Any:
    """Return the document of an answer; None where it is none."""
    with contextlib.suppress(ValueError):
        return await answer.json(content_type=None) if await answer.read() else None
    return None
