"""The framing cases on sockets, and reverse proxies whose clients share one connection."""

import asyncio
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.programs import find_program

from tests.servers.framing_cases import Case

SECONDS = 20
SILENCE_SECONDS = 0.3
"""Time for a response to a request whose end the proxy may wait for."""
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.[01] (\d+) ")
_NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_buffer_size 1m;
    large_client_header_buffers 4 64k;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream gateway {{ server 127.0.0.1:{target}; keepalive 1; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://gateway;
            proxy_http_version 1.1;
            proxy_request_buffering {buffering};
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
        }}
    }}
}}
"""


async def converse(port: int, case: Case) -> list[int]:
    """Return the statuses of the responses to a case.

    Raises TimeoutError where the server keeps a connection that it should close, or sends fewer
    responses. One that may go on serves one more request, and closes at its wish.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(case.data)
            if not case.closes:
                while len(STATUS.findall(received)) < len(case.requests):
                    piece = await reader.read(1 << 16)
                    assert piece, received
                    received += piece
                writer.write(LAST)
            # a server that closes before it has read all resets the connection
            with suppress(ConnectionResetError):
                while piece := await reader.read(1 << 16):
                    received += piece
    finally:
        writer.transport.abort()
    statuses = [int(status) for status in STATUS.findall(received)]
    return statuses if case.closes else statuses[:-1]


async def send(port: int, data: bytes) -> bytes:
    """Return what comes back within a short time; the connection is closed then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        writer.write(data)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(SILENCE_SECONDS):
                while not STATUS.search(received) and (piece := await reader.read(1 << 16)):
                    received += piece
    finally:
        writer.transport.abort()
    return received


@contextmanager
def run_nginx(target: int, port: int, folder: Path, *, buffers: bool) -> Iterator[int]:
    """Run nginx on `port` before the port `target`, configured as ingress controllers do.

    It sends a request on while it arrives, unless it `buffers` requests.
    """
    config = folder / "nginx.conf"
    buffering = "on" if buffers else "off"
    text = _NGINX.format(folder=folder, target=target, port=port, buffering=buffering)
    config.write_text(text)
    command = (find_program("nginx"), "-p", folder, "-e", "stderr", "-c", config)
    with subprocess.Popen(command) as process:
        try:
            yield port
        finally:
            process.terminate()


@contextmanager
def run_go_proxy(target: int) -> Iterator[int]:
    """Run the reverse proxy of Go's standard library before the port `target`; yields its port."""
    command = (find_program("go-proxy"), f"http://127.0.0.1:{target}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.terminate()
