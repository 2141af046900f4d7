"""Ready checks: one question each, answered yes or no and never by an exception."""

import asyncio
import ssl
from pathlib import Path

import aiohttp

from gateway_cli.local.process import ReadyCheck

_LIMIT = aiohttp.ClientTimeout(total=2)


def answers_ok(url: str) -> ReadyCheck:
    """Ready when a GET of `url` answers 200."""
    return lambda: _get(url, None)


def apiserver_answers(url: str, ca: Path, certificate: Path, key: Path) -> ReadyCheck:
    """Ready when the kube-apiserver's `/readyz` says so to the admin."""
    context: ssl.SSLContext | None = None

    async def check() -> bool:
        nonlocal context
        if context is None:
            context = ssl.create_default_context(cafile=str(ca))
            context.load_cert_chain(certificate, key)
        return await _get(f"{url}/readyz", context)

    return check


def redis_answers(host: str, port: int) -> ReadyCheck:
    """Ready when Redis answers PING."""

    async def check() -> bool:
        try:
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(b"PING\r\n")
                    return await reader.readline() == b"+PONG\r\n"
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    return check


async def _get(url: str, context: ssl.SSLContext | None) -> bool:
    try:
        async with (
            aiohttp.ClientSession(timeout=_LIMIT) as session,
            session.get(url, ssl=context or True) as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False
