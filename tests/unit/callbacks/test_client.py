"""Attempts at receivers on loopback that speak raw bytes, or TLS."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from gateway_core.callbacks.client import MOST_RECEIVED, CallbackAnswer, CallbackSender
from gateway_core.egress import connector as lookups
from gateway_core.egress.addresses import AddressPolicy
from tests.servers.receivers import Receiver

LOOPBACK = AddressPolicy(allowed=(ip_network("127.0.0.0/8"),))
TIMEOUT = 60.0
HEAD = b"HTTP/1.1 200 OK\r\n"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """A server that leaves each connection, once its request has come, to `serve`; its URL."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"{}")
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def send(url: str, serve: Serve | None = None) -> CallbackAnswer:
    sender = CallbackSender(LOOPBACK, timeout=TIMEOUT)
    try:
        return await sender.send(url, {}, b"{}")
    finally:
        await sender.close()


def write(*lines: bytes) -> Serve:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines(lines)
        await writer.drain()

    return serve


class TestFloods:
    """What comes is bounded whatever it is, so that one receiver cannot occupy the loop."""

    @pytest.mark.parametrize(
        "line",
        [b"HTTP/1.1 103 E\r\n\r\n", b"HTTP/1.1 100 C\r\nX: " + b"a" * 4000 + b"\r\n\r\n"],
        ids=["short", "long"],
    )
    async def test_flood_of_informational_answers_is_cut_off(self, line: bytes) -> None:
        written = 0

        async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            while written < 64 * 2**20:
                writer.write(line * 64)
                written += len(line) * 64
                await writer.drain()

        async with serving(flood) as url:
            told = await send(url)
        assert told == CallbackAnswer(None, "the connection was cut off", is_costly=True)
        assert written < 16 * 2**20, "socket buffers at most"

    async def test_endless_informational_answers_are_cut_off(self) -> None:
        sent = 0

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            while not reader.at_eof():
                writer.write(b"HTTP/1.1 103 E\r\nX: " + b"a" * 1000 + b"\r\n\r\n")
                sent += 1000
                await writer.drain()
                await asyncio.sleep(0)

        async with serving(drip) as url:
            told = await send(url)
        assert told.text == "the connection was cut off"
        assert sent > MOST_RECEIVED / 2

    async def test_few_informational_answers_are_skipped(self) -> None:
        early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        async with serving(write(early * 3, HEAD, b"Content-Length: 0\r\n\r\n")) as url:
            assert await send(url) == CallbackAnswer(200, "answered 200")

    async def test_status_before_a_long_body_is_the_answer(self) -> None:
        body = b"x" * (4 * MOST_RECEIVED)
        async with serving(write(HEAD, b"Content-Length: %d\r\n\r\n" % len(body), body)) as url:
            assert await send(url) == CallbackAnswer(200, "answered 200")


@pytest.mark.parametrize("status", ["000", "099", "600", "999"])
async def test_status_outside_http_is_no_answer(status: str) -> None:
    head = f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode()
    async with serving(write(head)) as url:
        told = await send(url)
    assert told == CallbackAnswer(None, "the answer is not HTTP", is_costly=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of hooks.example.com, its own authority: certificate and key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    name = ["-subj", "/CN=hooks", "-addext", "subjectAltName=DNS:hooks.example.com"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    files = ["-keyout", str(key), "-out", str(made)]
    command = ["openssl", "req", "-x509", *kind, *files, *name]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


class TestTls:
    """The receiver's certificate is for the URL's name, by somebody who is trusted."""

    @pytest.mark.parametrize(
        ("host", "is_trusted", "text"),
        [
            ("hooks.example.com", True, "answered 200"),
            ("other.example.com", True, "the certificate is not valid"),
            ("hooks.example.com", False, "the certificate is not valid"),
        ],
        ids=["valid", "another's name", "nobody's"],
    )
    async def test_callback_is_sent_only_over_a_trusted_certificate(
        self,
        monkeypatch: pytest.MonkeyPatch,
        certificate: tuple[Path, Path],
        host: str,
        is_trusted: bool,
        text: str,
    ) -> None:
        own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own.load_cert_chain(*certificate)
        asked: list[str | None] = []
        own.sni_callback = lambda _socket, name, _context: asked.append(name)
        trust = ssl.create_default_context(cafile=certificate[0]) if is_trusted else None
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
        monkeypatch.setattr(lookups, "_look_up", lambda *_: found)
        async with Receiver(ssl_context=own) as receiver:
            sender = CallbackSender(LOOPBACK, timeout=TIMEOUT, tls=trust)
            told = await sender.send(receiver.locate("done", host=host), {"a": "b"}, b"{}")
            await sender.close()
            arrived = [arrival.headers["Host"] for arrival in receiver.arrivals]
            port = receiver.port
        assert told.text == text
        assert asked == [host]
        assert arrived == ([f"{host}:{port}"] if told.status == 200 else [])
