"""HTTP calls that a provider resource declares, and the sessions they use."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import orjson
from yarl import URL

from gateway_core.api.http_provider import Header, HttpProvider
from gateway_core.egress.addresses import DECLARED, AddressPolicy
from gateway_core.egress.connector import guarded_connector, use_proxy
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.providers.checks import JOB, LOOKUP, RESULT, SUBMIT_PATH, Request
from gateway_core.providers.templates import Expression, PathTemplate, fill_header, prune_nulls
from gateway_core.providers.upstream import UpstreamBusy


@dataclass(frozen=True, slots=True)
class Call:
    """A request ready to send."""

    method: str
    url: URL
    headers: dict[str, str]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A declared request, compiled."""

    method: str
    base: str
    path: PathTemplate
    headers: Mapping[str, str]
    body: Expression | None

    def fill(
        self, values: Mapping[str, str], document: Mapping[str, Any] | None = None, **extra: str
    ) -> Call:
        """Return the request for `values` in the path and `document` (else `values`) in the body.

        `extra` are further headers. Raises ValueError or TypeError where a value does not fit.
        """
        url = URL(self.base + self.path.fill(values), encoded=True)
        body = None
        headers = {**self.headers, **extra}
        if self.body is not None:
            content = prune_nulls(self.body.evaluate(values if document is None else document))
            if content is None:
                raise ValueError("the body came out as null")
            body = orjson.dumps(content)
            headers = {"content-type": "application/json", **headers}
        return Call(self.method, url, headers, body)


@dataclass(frozen=True, slots=True)
class CallPlans:
    """Calls of one provider."""

    submit: CallPlan
    poll: CallPlan
    result: CallPlan | None
    cancel: CallPlan | None
    lookup: CallPlan | None


def compile_calls(http: HttpProvider, credential: str | None) -> CallPlans:
    """Return the provider's calls. Raises ValueError for an invalid expression or template."""
    base = http.base_url.rstrip("/")
    common = fill_headers(http.headers, credential)

    def plan(request: Request, names: Collection[str]) -> CallPlan:
        return CallPlan(
            request.method,
            base,
            PathTemplate(request.path, names),
            {**common, **fill_headers(request.headers, credential)},
            None if request.body is None else Expression(request.body),
        )

    return CallPlans(
        submit=plan(http.submit, SUBMIT_PATH),
        poll=plan(http.poll, JOB),
        result=plan(http.result, RESULT) if http.result else None,
        cancel=plan(http.cancel, JOB) if http.cancel else None,
        lookup=plan(http.lookup, LOOKUP) if http.lookup else None,
    )


def fill_headers(headers: list[Header] | None, credential: str | None) -> dict[str, str]:
    """Return headers by lower-case name. Raises TemplateError as `fill_header` does."""
    return {header.name.lower(): fill_header(header.value, credential) for header in headers or ()}


def decode_credential(credential: bytes | str | None) -> str | None:
    """Return the credential as text. Raises ValueError for invalid UTF-8."""
    if isinstance(credential, bytes):
        try:
            credential = credential.decode()
        except UnicodeDecodeError:
            raise ValueError("the credential is not UTF-8 text") from None
    return credential.strip() or None if credential else None


SLOT_SECONDS = 10.0
"""How long a call waits for one of its provider's slots."""


def make_slots(limit: int) -> FairSemaphore:
    """Slots of a provider's calls, in the order of the calls.

    `take` raises UpstreamBusy where none is free in time. The wait is outside the call's time-out:
    a call that was never sent is never unclear.
    """
    return FairSemaphore(limit, alone=limit, seconds=SLOT_SECONDS, error=_too_many)


def _too_many() -> UpstreamBusy:
    return UpstreamBusy("Too many calls to the provider are under way.")


_CONNECT_SECONDS = 10.0
_STALL_SECONDS = 30.0
_READ_BUFFER = 256 * 1024


class Connections:
    """Sessions of a provider, created at their first use: a connector needs the running loop.

    `limit` bounds the connections of each kind, `timeout` the seconds of a call.
    """

    def __init__(self, policy: AddressPolicy, *, limit: int, timeout: float) -> None:
        call = aiohttp.ClientTimeout(total=timeout, connect=min(_CONNECT_SECONDS, timeout / 2))
        read = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=_STALL_SECONDS
        )
        # an admin declares the provider, also inside the cluster; metadata addresses stay forbidden
        declared = partial(guarded_connector, DECLARED, limit)
        self._makers: dict[str, Callable[[], aiohttp.ClientSession]] = {
            "calls": lambda: open_session(declared(), call),
            # the server may close an idle connection just as a request is sent, which leaves
            # unknown whether a job was created
            "submissions": lambda: open_session(declared(once=True), call, once=True),
            "own outputs": lambda: open_session(declared(), read, decompress=False),
            # never by a proxy, which would resolve the name itself, after the policy's check
            "outputs": lambda: open_session(
                guarded_connector(policy, limit), read, decompress=False, proxied=False
            ),
        }
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._closed = False

    @property
    def calls(self) -> aiohttp.ClientSession:
        """Session for calls that may be repeated."""
        return self._get("calls")

    @property
    def submissions(self) -> aiohttp.ClientSession:
        """Session for calls that start a job, each on a connection of its own."""
        return self._get("submissions")

    @property
    def own_outputs(self) -> aiohttp.ClientSession:
        """Session for outputs at the provider's own address, which an admin has declared."""
        return self._get("own outputs")

    @property
    def outputs(self) -> aiohttp.ClientSession:
        """Session for outputs elsewhere, guarded by the address policy."""
        return self._get("outputs")

    async def close(self) -> None:
        """Close all sessions; later calls raise UpstreamBusy, as the resource may have changed."""
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
    proxied: bool = True,
) -> aiohttp.ClientSession:
    """Session for a provider; with `once` no request is ever sent twice.

    With `proxied` requests take the proxy that the environment names for their URL.
    """
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=decompress,
        read_bufsize=_READ_BUFFER,
        headers={"User-Agent": "model-gateway"},
        middlewares=[*([_send_once] if once else ()), *([use_proxy] if proxied else ())],
    )


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating an interrupted PUT or GET: it decides by the error's type."""
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError("cut off") from error


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """Return the body of a response, None where it has more than `most` bytes."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            response.close()
            return None
    return bytes(body)
