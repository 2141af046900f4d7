"""Free test calls to a provider as its resource declares it."""

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp

from gateway_cli.output import Document
from gateway_cli.session import CommandError
from gateway_core.api.provider import DirectProvider, ProviderSpec
from gateway_core.egress.addresses import DECLARED
from gateway_core.egress.connector import use_proxy
from gateway_core.failures import describe_failure
from gateway_core.llm.upstream import Dialect, fill_direct_headers, split_credentials
from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.upstream import UpstreamDenied, UpstreamError, UpstreamGone

TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
REFUSED = (401, 402, 403)
"""Statuses of refused credentials."""
ADVICE = {
    401: "the credential is refused: does the Secret hold the provider's key, and nothing else?",
    403: "the credential lacks a right, or this machine's address is not allowed",
    404: "baseUrl may be wrong, or the server has no list of models; it does answer",
}


class Result(NamedTuple):
    """The outcome of a call; `refused`: the provider refuses the credential."""

    ok: bool
    answer: str
    refused: bool = False


async def call_provider(spec: ProviderSpec, credential: bytes | None) -> list[Document]:
    """Call a provider once with each credential. CommandError where no call can be made."""
    try:
        if spec.type == "http":
            return [await _poll(HttpUpstream(spec, credential, DECLARED))]
        declared = spec.openai or spec.google
        if declared is None:
            raise CommandError(
                f"a provider of type {spec.type} is code in the operator's image: it cannot be"
                " called from here. Its Ready condition says whether it has started"
            )
        given = split_credentials(credential)
        dialect: Dialect = "openai" if spec.openai else "google"
        return [
            await _list_models(declared, fill_direct_headers(dialect, declared, secret), number)
            for number, secret in enumerate(given, 1)
        ]
    except ValueError as error:
        raise CommandError(
            f"the declaration or the credential is invalid: {describe_failure(error)}"
        ) from error


async def _poll(upstream: HttpUpstream) -> Document:
    """Poll a job that does not exist: a provider that says so has taken the credential."""
    try:
        await upstream.start()

        async def attempt() -> Result:
            try:
                await upstream.poll(f"gatewayctl-test-{secrets.token_hex(4)}")
            except UpstreamGone:
                return Result(True, "it knows no such job, as it should")
            except UpstreamError as error:
                return Result(False, str(error), isinstance(error, UpstreamDenied))
            return Result(True, "it answers as for a job")

        return await _time(attempt, 1, "poll of an unknown job")
    finally:
        await upstream.close()


async def _list_models(declared: DirectProvider, headers: dict[str, str], number: int) -> Document:
    url = declared.base_url.rstrip("/") + "/models"

    async def attempt() -> Result:
        try:
            async with (
                aiohttp.ClientSession(timeout=TIMEOUT, middlewares=[use_proxy]) as session,
                session.get(url, headers=headers, allow_redirects=False) as answer,
            ):
                is_ok, is_refused = answer.status == 200, answer.status in REFUSED
                return Result(is_ok, _explain(answer.status), is_refused)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # its text may hold the address, never a header
            return Result(False, f"no answer ({describe_failure(error)})")

    return await _time(attempt, number, f"GET {urlsplit(url).path}")


def _explain(status: int) -> str:
    advice = ADVICE.get(status)
    return f"HTTP status {status}" + (f": {advice}" if advice else "")


async def _time(attempt: Callable[[], Awaitable[Result]], number: int, call: str) -> Document:
    begin = time.monotonic()
    result = await attempt()
    took = round(1000 * (time.monotonic() - begin))
    return {
        "credential": number,
        "ok": result.ok,
        "refused": result.refused,
        "milliseconds": took,
        "call": call,
        "answer": result.answer,
    }
