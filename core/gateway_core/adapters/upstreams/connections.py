"""The HTTP sessions of one provider; used by `http`, `openai` and `outputs`.

No session keeps cookies, reads proxy settings from the environment or follows redirects by itself.
"""

from collections.abc import Callable
from functools import partial

import aiohttp

from gateway_core.adapters.egress import guarded_connector
from gateway_core.domain.addresses import DECLARED, AddressPolicy
from gateway_core.ports.upstream import UpstreamBusy

_CONNECT_SECONDS = 10.0
_STALL_SECONDS = 30.0
_READ_BUFFER = 256 * 1024


class Connections:
    """Sessions made at their first use, since a connector needs the running loop.

    `limit` is the most connections of each kind, `timeout` the seconds a call may take.
    """

    def __init__(self, policy: AddressPolicy, *, limit: int, timeout: float) -> None:
        call = aiohttp.ClientTimeout(total=timeout, connect=min(_CONNECT_SECONDS, timeout / 2))
        read = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=_STALL_SECONDS
        )
        # an admin has declared where it is, also inside; never where clouds keep credentials
        declared = partial(guarded_connector, DECLARED, limit)
        self._makers: dict[str, Callable[[], aiohttp.ClientSession]] = {
            "calls": lambda: open_session(declared(), call),
            # A connection that was idle may be closed by the other side just as a request is sent,
            # and nobody knows then whether the job was made.
            "submissions": lambda: open_session(declared(once=True), call, once=True),
            "own outputs": lambda: open_session(declared(), read, decompress=False),
            "outputs": lambda: open_session(
                guarded_connector(policy, limit), read, decompress=False
            ),
        }
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._closed = False

    @property
    def calls(self) -> aiohttp.ClientSession:
        """For calls that may be repeated."""
        return self._get("calls")

    @property
    def submissions(self) -> aiohttp.ClientSession:
        """For calls that start a job: each on a connection of its own."""
        return self._get("submissions")

    @property
    def own_outputs(self) -> aiohttp.ClientSession:
        """For outputs at the provider's own address, which an admin has declared."""
        return self._get("own outputs")

    @property
    def outputs(self) -> aiohttp.ClientSession:
        """For outputs elsewhere: never to an address that the policy refuses."""
        return self._get("outputs")

    async def close(self) -> None:
        """Closes all; later calls raise UpstreamBusy, since the provider may have a successor."""
        self._closed = True
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()

    def _get(self, name: str) -> aiohttp.ClientSession:
        if self._closed:
            raise UpstreamBusy("The provider is being reconfigured.")
        if name not in self._sessions:
            self._sessions[name] = self._makers[name]()
        return self._sessions[name]


def open_session(
    connector: aiohttp.BaseConnector,
    timeout: aiohttp.ClientTimeout,
    *,
    decompress: bool = True,
    once: bool = False,
) -> aiohttp.ClientSession:
    """A session for a provider; with `once` nothing is ever sent a second time."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=decompress,
        read_bufsize=_READ_BUFFER,
        headers={"User-Agent": "model-gateway"},
        middlewares=[_send_once] if once else (),
    )


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keeps aiohttp from repeating a PUT or GET that was cut off; it goes by the error's type."""
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError("cut off") from error


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body of an answer, None if it has more bytes than are read."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            response.close()
            return None
    return bytes(body)
