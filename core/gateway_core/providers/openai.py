"""Moderation provider with OpenAI's API (`GatewayProvider`, type openai)."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import DECLARED
from gateway_core.egress.connector import guarded_connector
from gateway_core.kube.clock import CLOCK
from gateway_core.providers.checks import check_provider
from gateway_core.providers.http_answers import (
    REFUSED,
    Answer,
    find_call_error,
    parse_retry_after,
)
from gateway_core.providers.http_calls import (
    decode_credential,
    fill_headers,
    make_slots,
    open_session,
    read_body,
)
from gateway_core.providers.moderation import (
    InvalidResponse,
    ModerationCall,
    complete_answer,
    read_call,
)
from gateway_core.providers.redaction import MessageCleaner
from gateway_core.providers.upstream import (
    ModerationUpstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamRejected,
    UpstreamTimedOut,
    UpstreamUnclear,
)

_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 4.0
"""Lifetime of an idle connection: common servers close theirs after 5 s, which would break a call
just being sent."""
_ANSWER_BYTES = 64 * 1024
_RESULT_BYTES = 4 * 1024
"""Bytes read of a response, at most: a base, and an amount for each result."""
_RESULTS_AT_ONCE = 128
"""Results beyond which a response is parsed on a thread: 2,048 take a tenth of a second."""
_LARGE_CHARACTERS = 256 * 1024
"""Characters beyond which an input is checked and encoded on a thread."""
_CUT = "The connection to the provider broke off."


class OpenAIUpstream(ModerationUpstream):
    """ModerationUpstream for a resource of type openai.

    `credential` is the value of the resource's Secret. Raises ValueError, saying what to correct,
    where the resource or the credential is invalid.
    """

    def __init__(self, spec: ProviderSpec, credential: bytes | str | None) -> None:
        problems = check_provider(spec)
        if problems or spec.openai is None:
            raise ValueError(
                "; ".join(problem.text for problem in problems) or "openai: is missing"
            )
        openai = spec.openai
        secret = decode_credential(credential)
        headers = fill_headers(openai.headers, secret)
        if secret is not None:
            headers.setdefault("authorization", f"Bearer {secret}")
        self._headers: Mapping[str, str] = {
            "accept": "application/json",
            "content-type": "application/json",
            **headers,
        }
        self._url = openai.base_url.rstrip("/") + "/moderations"
        host = urlsplit(openai.base_url).hostname or ""
        self._cleaner = MessageCleaner(
            (host,), [secret] if secret is not None else (), headers.values()
        )
        self._limit = spec.max_concurrent_requests
        self._timeout = float(openai.request_timeout_seconds)
        self._slots = make_slots(self._limit)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def limit(self) -> int:
        """Concurrent calls, as declared."""
        return self._limit

    async def moderate(
        self, body: Mapping[str, Any], *, traceparent: str | None = None
    ) -> dict[str, Any]:
        """Return the complete response to a body; see `ModerationUpstream`."""
        if _is_large(body.get("input")):
            call, content = await asyncio.to_thread(_prepare, body)
        else:
            call, content = _prepare(body)
        headers = dict(self._headers)
        if traceparent is not None:
            headers["traceparent"] = traceparent
        most = _ANSWER_BYTES + _RESULT_BYTES * call.results
        answer = await self._send(content, headers, most)
        problem = find_call_error(answer)
        if problem is not None:
            raise problem
        if answer.status == 404:
            # model and URL come from resources, so this is no error of the client
            raise UpstreamDenied("The provider knows no such model or address (HTTP status 404).")
        if not answer.ok:
            raise UpstreamRejected(self._explain(answer, call.model_id))
        try:
            if call.results > _RESULTS_AT_ONCE:
                return await asyncio.to_thread(_complete, answer, call)
            return _complete(answer, call)
        except InvalidResponse as error:
            raise UpstreamUnclear("The provider's answer is no moderation.") from error

    async def close(self) -> None:
        """Close connections; later calls raise UpstreamBusy, as the resource may have changed."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _send(self, body: bytes, headers: Mapping[str, str], most: int) -> Answer:
        async with self._slots.take(None):
            try:
                async with self._open().post(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as response:
                    wait = parse_retry_after(response.headers.get("Retry-After"), CLOCK.time())
                    return Answer(response.status, await read_body(response, most), wait)
            # both mean that the call was not sent
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                raise UpstreamBusy("The provider could not be reached.") from error
            except TimeoutError as error:
                raise UpstreamTimedOut("The provider did not answer in time.") from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise UpstreamUnclear(_CUT) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise UpstreamBusy("The provider is being reconfigured.")
        if self._session is None:
            # created at the first use: a connector needs the running loop. An admin declares the
            # provider, also inside the cluster; metadata addresses stay forbidden.
            connector = guarded_connector(DECLARED, self._limit, idle_seconds=_IDLE_SECONDS)
            timeout = aiohttp.ClientTimeout(
                total=self._timeout, connect=min(_CONNECT_SECONDS, self._timeout / 2)
            )
            self._session = open_session(connector, timeout)
        return self._session

    def _explain(self, answer: Answer, upstream_model: str) -> str:
        """Why the provider rejected the input, redacted."""
        try:
            document = answer.parse()
        except UpstreamUnclear:
            return REFUSED
        error = document.get("error") if isinstance(document, dict) else None
        raw = error.get("message") if isinstance(error, dict) else error
        return self._cleaner.clean(raw, REFUSED, upstream_model)


def _is_large(given: Any) -> bool:
    """Return whether an input, texts or parts, takes long to check and to encode."""
    if isinstance(given, str):
        return len(given) > _LARGE_CHARACTERS
    if not isinstance(given, list):
        return False
    return sum(map(_measure, given)) > _LARGE_CHARACTERS


def _measure(item: Any) -> int:
    """Characters of a text, or of a part's text or image."""
    if not isinstance(item, dict):
        return len(item) if isinstance(item, str) else 0
    image = item.get("image_url")
    return _measure(item.get("text")) + (
        _measure(image.get("url")) if isinstance(image, dict) else 0
    )


def _prepare(body: Mapping[str, Any]) -> tuple[ModerationCall, bytes]:
    call = read_call(body)
    return call, orjson.dumps(call.to_upstream(call.model_id))


def _complete(answer: Answer, call: ModerationCall) -> dict[str, Any]:
    return complete_answer(answer.parse(), call)
