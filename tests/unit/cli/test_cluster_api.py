"""Calls of the command line by the package `kubernetes`, on a server of our own."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway_cli.cluster.api import Api
from gateway_core.kube.connection import Connection, Credentials
from gateway_core.kube.errors import (
    KubernetesUnavailable,
    RequestForbidden,
    WriteOutcomeUnknown,
)

HANG = threading.Event()


class Server:
    """Answers with `statuses` in turn, then with 200; 0 closes the connection, -1 hangs."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.body = b"{}"
        self.seen: list[dict[str, list[str]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                headers = self.headers
                self.rfile.read(int(headers.get("Content-Length", 0)))
                server.seen.append({name: headers.get_all(name) or [] for name in headers})
                status = server.statuses.pop(0) if server.statuses else 200
                if status == -1:
                    HANG.wait(30)
                if status <= 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(server.body)))
                if status == 429:
                    self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(server.body)

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with contextlib.closing(server):
        yield server


async def list_objects(api: Api) -> object:
    return await api.run(api.objects.list_namespaced_custom_object, "g", "v1", "ns", "things")


async def create_object(api: Api) -> object:
    create = api.objects.create_namespaced_custom_object
    return await api.run(create, "g", "v1", "ns", "things", {"spec": {}})


async def test_request_has_all_headers_of_the_identity(server: Server) -> None:
    tokens = iter(["first", "second", "third"])

    def read() -> Credentials:
        # expired at once
        return Credentials(f"Bearer {next(tokens)}", expires_at=0.0)

    groups = (("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    api = Api(Connection(server.url, headers=groups, read_credentials=read), 5.0)
    await list_objects(api)
    await api.call("GET", "/version")
    assert [headers["Authorization"] for headers in server.seen] == [
        ["Bearer second"],
        ["Bearer third"],
    ]
    assert [headers["Impersonate-Group"] for headers in server.seen] == [["a", "b"]] * 2


async def test_environment_does_not_choose_the_proxy(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert await list_objects(Api(Connection(server.url), 5.0)) == {}


async def test_write_without_an_answer_is_unknown_and_sent_once(server: Server) -> None:
    api = Api(Connection(server.url), 5.0)
    server.statuses = [0]
    with pytest.raises(WriteOutcomeUnknown):
        await create_object(api)
    server.statuses = [503]
    with pytest.raises(WriteOutcomeUnknown):
        await create_object(api)
    server.statuses = [0]
    with pytest.raises(KubernetesUnavailable):
        await list_objects(api)
    assert len(server.seen) == 3
    server.close()
    with pytest.raises(KubernetesUnavailable, match="was not reached"):
        await create_object(api)


async def test_busy_server_is_asked_again(server: Server) -> None:
    api = Api(Connection(server.url), 5.0)
    server.statuses = [429, 429]
    assert await create_object(api) == {}
    server.statuses = [429] * 9
    with pytest.raises(KubernetesUnavailable):
        await create_object(api)
    server.statuses = [403]
    with pytest.raises(RequestForbidden):
        await create_object(api)


async def test_answer_that_is_no_json_is_an_error(server: Server) -> None:
    server.body = b"<html>"
    api = Api(Connection(server.url), 5.0)
    for work in (list_objects(api), api.call("GET", "/api/v1/namespaces/ns/secrets/s")):
        with pytest.raises(ValueError, match="Expecting value"):
            await work
    assert await api.read_text("/metrics") == "<html>"


def test_interrupted_command_ends_at_once(server: Server) -> None:
    api = Api(Connection(server.url), 30.0)
    server.statuses = [-1]

    async def interrupt() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(list_objects(api), 0.2)

    begin = time.monotonic()
    asyncio.run(interrupt())
    took = time.monotonic() - begin
    HANG.set()
    assert took < 10
