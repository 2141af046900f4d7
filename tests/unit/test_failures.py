"""Failures of libraries in words: what people read has no class, no repr and no errno."""

import asyncio
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import botocore.session
import pytest
import redis
import trustme
import urllib3
import yaml
from pydantic import BaseModel, ValidationError, field_validator

from gateway_core.failures import MOST_CHARACTERS, describe_failure

_PYTHON = re.compile(r"Error\b|\bErrno|0x[0-9a-f]|ssl:|\('|<[a-z]+\.|Value error|Traceback")


@contextmanager
def serve(answer: bytes, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Addresses of a server that gives each connection this answer, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        if context is not None:
                            context.wrap_socket(connection, server_side=True)
                        connection.recv(1000)
                        connection.sendall(answer)
                    except OSError:
                        continue

        threading.Thread(target=run, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def by_aiohttp(url: str) -> None:
    async def get() -> None:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            await answer.read()

    asyncio.run(get())


def by_urllib3(url: str) -> None:
    urllib3.PoolManager(retries=1).request("GET", url)


def catch(work: Callable[..., Any], *arguments: Any) -> str:
    try:
        work(*arguments)
    except Exception as error:
        text = describe_failure(error)
    else:
        pytest.fail("nothing failed")
    assert not _PYTHON.search(text), text
    assert text == text.strip().removesuffix(".")
    return text


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("client", [by_aiohttp, by_urllib3])
def test_clients_of_http_say_the_same(client: Callable[[str], None]) -> None:
    assert catch(client, f"http://{closed_port()}/") == "connection refused"
    assert catch(client, f"https://{closed_port()}/") == "connection refused"
    with serve(b"nonsense\r\n\r\n") as place:
        assert catch(client, f"https://{place}/") == "TLS failed: wrong version number"
        assert catch(client, f"http://{place}/")
    with serve(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc") as place:
        assert catch(client, f"http://{place}/")
    with serve(b"") as place:
        assert catch(client, f"http://{place}/")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with serve(b"", context) as place:
        text = catch(client, f"https://{place}/")
    assert text == "the certificate is not trusted: unable to get local issuer certificate"


def test_redis_and_object_store_name_the_address() -> None:
    place = closed_port()
    host, _, port = place.partition(":")
    ping = redis.Redis(host, int(port)).ping
    assert catch(ping) == f"{place}: connection refused"
    store = botocore.session.get_session().create_client(
        "s3",
        region_name="x",
        endpoint_url=f"http://{place}",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    assert place in catch(store.list_buckets)


def test_certificates_that_cannot_be_loaded_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_text("no certificate")
    context = ssl.create_default_context()
    text = catch(lambda: context.load_verify_locations(cafile=path))
    assert text == "TLS failed: no certificate or crl found"
    text = catch(lambda: context.load_verify_locations(cadata="x"))
    assert text == "TLS failed: no start line: cadata does not contain a certificate"


def test_files_and_documents_are_named_with_their_place(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    assert catch(missing.read_text) == f"{missing}: no such file or directory"
    assert catch(json.loads, '{"a') == "not valid JSON (line 1, column 2)"
    assert catch(yaml.safe_load, "a: [\nb: :").startswith("line 2, column 4: expected")
    assert catch(b"\xff".decode) == "not valid UTF-8 text"


class Model(BaseModel):
    """Values of which each breaks a rule."""

    size: int
    name: str

    @field_validator("name")
    @classmethod
    def refuse(cls, _: str) -> str:
        raise ValueError("must be unique")


def test_invalid_values_are_named_without_the_library() -> None:
    text = catch(Model.model_validate, {"size": "x", "name": "a"})
    assert text.endswith("; name must be unique")
    assert text.startswith("size must be a valid integer")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "no answer in time"),
        (ConnectionResetError(104, "Connection reset by peer"), "connection reset by peer"),
        (KeyError("name"), "name is missing"),
        (RuntimeError(), "runtime"),
        (RuntimeError(OSError(2, "No such file", "a")), "a: no such file"),
        (RuntimeError("<object at 0x7f00>"), "runtime"),
        (ValueError("the port is wrong."), "the port is wrong"),
        (ValueError("x" * 1000), "x" * (MOST_CHARACTERS - 1) + "…"),
    ],
)
def test_error_without_a_sentence_gets_one(error: Exception, text: str) -> None:
    assert describe_failure(error) == text


def test_error_that_causes_itself_ends() -> None:
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    assert describe_failure(first) == "runtime"


def test_validation_error_is_described_in_its_wrapping() -> None:
    try:
        Model.model_validate({"size": 1, "name": "a"})
    except ValidationError as inner:
        outer = RuntimeError("settings")
        outer.__cause__ = inner
        assert describe_failure(outer) == "name must be unique"
