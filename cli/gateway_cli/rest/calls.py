"""Calls of the REST API with one key: what may be repeated is repeated, refusals are explained."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import aiohttp

from gateway_cli.rest.errors import RestError, read_refusal

CALL_SECONDS = 30.0
ATTEMPTS = 4
LONGEST_PAUSE = 60.0
SUCCESS = (200, 202)

Body = dict[str, Any]


class RestCalls:
    """One key on one API; use it as a context manager.

    Errors of the server and rate limits are waited out, as long as the server says how long.
    """

    def __init__(
        self, base_url: str, api_key: str, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._say = say
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        headers = {"Authorization": f"Bearer {api_key}"}
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def insist(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        form: Callable[[], aiohttp.FormData] | None = None,
        seconds: float = CALL_SECONDS,
        repeat: bool = True,
        member: str = "id",
    ) -> Body:
        """The answer's object, which has `member`.

        Each attempt has `seconds` and sends `body`, or the form that `form` makes. `repeat` False:
        a call whose outcome is not known is not made again.

        Raises:
            RestError: it is refused, or still not taken after some attempts.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                data = form() if form else None
                return await self._call(method, path, headers, body, data, seconds, member)
            except RestError as error:
                unknown = error.status is None or error.status >= 500
                if error.retry_after is None or attempt == ATTEMPTS or (unknown and not repeat):
                    raise
                pause = min(LONGEST_PAUSE, error.retry_after)
                self._say(f"{str(error).partition(chr(10))[0]}; once more in {pause:.0f} s")
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def stream(
        self, path: str, headers: Mapping[str, str]
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A GET whose body is read as it comes; a minute may pass between two pieces of it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
        return self._session.get(
            self._base_url + path, headers=headers, timeout=timeout, allow_redirects=False
        )

    async def _call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        body: Body | None,
        data: aiohttp.FormData | None,
        seconds: float,
        member: str,
    ) -> Body:
        url = self._base_url + path
        try:
            async with self._session.request(
                method,
                url,
                headers=headers,
                json=body,
                data=data,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as answer:
                content = await answer.read()
                status, told = answer.status, answer.headers
                found = await read_json(answer, content)
        except (aiohttp.ClientError, TimeoutError) as error:
            text = f"{method} {url} is not answered: {error or type(error).__name__}"
            raise RestError(
                f"{text}\n  is GATEWAY_BASE_URL right, and the gateway up?", retry_after=1.0
            ) from error
        if status not in SUCCESS:
            raise read_refusal(status, told, found)
        if not isinstance(found, dict) or member not in found:
            raise RestError(f"{url} answers {status} with something that is no answer of this API")
        return found


async def read_json(answer: aiohttp.ClientResponse, content: bytes) -> Any:
    """The document of an answer; None where it is none."""
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        return await answer.json(content_type=None) if content else None
    return None
