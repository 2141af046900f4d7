"""I11: a JSON body that drips is ended on every surface, with a key and without one."""

import asyncio
from contextlib import suppress

import pytest

from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from gateway_web.middleware import bodies
from tests.servers.listener import listen
from tests.unit.apiserver.gateway import PATH, Gateway

JSON = "application/json"


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/api/v1/price_quotes", None),
        (PATH, "Standard"),
        ("/api/v1/files", "Standard"),
        ("/v1/uploads", "Standard"),
        ("/v1/moderations", "Standard"),
        ("/api/v1/management/keys", "Management"),
    ],
)
async def test_body_that_drips_is_ended(
    gateway: Gateway, path: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "IDLE_SECONDS", 0.2)
    credential = ""
    if key is not None:
        plaintext = gateway.put_key("demo", key)  # type: ignore[arg-type]
        credential = f"Authorization: Bearer {plaintext}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\n{credential}"
        f"Content-Type: {JSON}\r\nContent-Length: 100000\r\n\r\n"
    )
    async with listen(gateway.app, ConnectionTable(ConnectionBounds())) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def drip() -> None:
            writer.write(head.encode() + b'{"a": "')
            with suppress(ConnectionError):
                while True:
                    await writer.drain()
                    await asyncio.sleep(0.02)
                    writer.write(b"a")

        dripping = asyncio.create_task(drip())
        try:
            async with asyncio.timeout(20):
                answer = await reader.readuntil(b"\r\n\r\n")
        finally:
            dripping.cancel()
            writer.transport.abort()
    assert answer.split()[1] == b"503"
    assert b"retry-after: " in answer
