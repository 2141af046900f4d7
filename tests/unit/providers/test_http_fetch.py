"""Reading outputs: from where, how much, and what each answer means."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers import http_calls as connections
from gateway_core.providers.upstream import (
    OutputRejected,
    UpstreamBusy,
    UpstreamError,
    UpstreamGone,
    UpstreamUnclear,
)
from tests.unit.providers.conftest import Connect

VIDEO = web.Response(body=b"0123456789", content_type="video/mp4")
Read = Callable[..., Awaitable[tuple[str, bytes]]]


@pytest.fixture
def read(connect: Connect) -> Read:
    """Reads the output at a URL: its type and bytes. Further options are of `Connect`."""

    async def fetch(output: str, **more: Any) -> tuple[str, bytes]:
        outputs = {
            "http.outputHosts": ["localhost", "*.cdn.example"],
            "http.outputHeaders": [{"name": "X-Key", "value": "{credential}"}],
        }
        changes = outputs | more.pop("changes", {})
        async with connect(changes, **more).fetch(output) as download:
            return download.content_type, b"".join([chunk async for chunk in download.chunks])

    return fetch


def elsewhere(cdn: Any) -> str:
    """The second server by a name that differs from the provider's host."""
    return cdn.url.replace("127.0.0.1", "localhost")


async def test_output_of_the_providers_own_origin(provider: Any, read: Read) -> None:
    provider.answers(VIDEO)
    url = provider.url + "/files/a%2Fb.mp4?sig=a%2Bb%7E~&x=%20#part"
    assert await read(url, allowed=()) == ("video/mp4", b"0123456789")
    (seen,) = provider.seen
    assert seen.target == "/files/a%2Fb.mp4?sig=a%2Bb%7E~&x=%20"
    assert seen.headers["x-key"] == "s3cr3t-Credential-0042"
    assert seen.headers["accept-encoding"] == "identity"
    assert "authorization" not in seen.headers


async def test_output_of_an_allowed_host_gets_no_credential(cdn: Any, read: Read) -> None:
    cdn.answers(VIDEO)
    assert (await read(elsewhere(cdn) + "/a.mp4"))[1] == b"0123456789"
    assert "x-key" not in cdn.seen[0].headers
    assert "authorization" not in cdn.seen[0].headers


async def test_allowed_host_at_a_private_address_is_refused(cdn: Any, read: Read) -> None:
    with pytest.raises(OutputRejected):
        await read(elsewhere(cdn) + "/a.mp4", allowed=())
    assert cdn.seen == []


async def test_metadata_address_is_refused_even_if_declared(read: Read) -> None:
    host = "169.254.169.254"
    with pytest.raises(OutputRejected):
        await read(f"http://{host}/latest/meta-data", changes={"http.outputHosts": [host]})


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example/a.mp4",
        "https://cdn.example/a.mp4",
        "https://evilcdn.example/a.mp4",
        "https://a.cdn.example.evil.example/a.mp4",
        "https://user@a.cdn.example/a.mp4",
        "https://a.cdn.example:x/a.mp4",
        "https://a.cdn.example%2eevil.example/a.mp4",
        "https://.cdn.example/a.mp4",
        "https://evil.example\\.cdn.example/a.mp4",
        "ftp://localhost/a.mp4",
        "file:///etc/passwd",
        "/a.mp4",
        "",
        "http://",
        "http://[::1/a.mp4",
        "http://169.254.169.254/latest/meta-data",
    ],
)
async def test_output_at_undeclared_address_is_refused(read: Read, url: str) -> None:
    with pytest.raises(OutputRejected) as caught:
        await read(url)
    assert "example" not in caught.value.message


async def test_another_port_of_the_providers_host_is_another_origin(cdn: Any, read: Read) -> None:
    with pytest.raises(OutputRejected):
        await read(cdn.url + "/a.mp4")
    assert cdn.seen == []


async def test_plain_http_only_where_the_provider_has_it(read: Read, cdn: Any) -> None:
    with pytest.raises(OutputRejected):
        await read(elsewhere(cdn) + "/a.mp4", url="https://api.example")
    assert cdn.seen == []


async def test_redirects_are_followed_without_the_credential(
    provider: Any, cdn: Any, read: Read
) -> None:
    there = elsewhere(cdn) + "/b.mp4?sig=a%2Bb"
    provider.answers(
        web.Response(status=302, headers={"Location": "/a2.mp4"}),
        web.Response(status=307, headers={"Location": there}),
    )
    cdn.answers(VIDEO)
    assert (await read(provider.url + "/a.mp4"))[1] == b"0123456789"
    assert [s.target for s in provider.seen] == ["/a.mp4", "/a2.mp4"]
    assert cdn.seen[0].target == "/b.mp4?sig=a%2Bb"
    assert "x-key" not in cdn.seen[0].headers


@pytest.mark.parametrize(
    "location", ["https://other.example/", "http://169.254.169.254/", "file:///etc/passwd", "//x"]
)
async def test_redirect_keeps_to_the_rules(provider: Any, read: Read, location: str) -> None:
    provider.answers(web.Response(status=302, headers={"Location": location}))
    with pytest.raises(OutputRejected):
        await read(provider.url + "/a.mp4")


async def test_endless_redirects_are_refused(provider: Any, read: Read) -> None:
    provider.answers(web.Response(status=302, headers={"Location": "/a.mp4"}))
    with pytest.raises(OutputRejected):
        await read(provider.url + "/a.mp4")
    assert len(provider.seen) == 4


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, UpstreamGone),
        (410, UpstreamGone),
        (429, UpstreamBusy),
        (503, UpstreamBusy),
        (500, UpstreamUnclear),
        (502, UpstreamUnclear),
        (403, UpstreamUnclear),
        (204, UpstreamUnclear),
        (206, UpstreamUnclear),
        (304, UpstreamUnclear),
    ],
)
async def test_each_status_of_an_output(
    provider: Any,
    read: Read,
    status: int,
    error: type[UpstreamError],
) -> None:
    provider.answers(web.Response(status=status, headers={"Retry-After": "7"}))
    with pytest.raises(UpstreamError) as caught:
        await read(provider.url + "/a.mp4")
    assert type(caught.value) is error
    assert caught.value.retry_after == (None if error is UpstreamGone else 7)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("video/mp4", "video/mp4"),
        ("Video/WebM; codecs=vp9", "video/webm"),
        ("application/octet-stream", "application/octet-stream"),
        ("binary/octet-stream", "application/octet-stream"),
        ("", "application/octet-stream"),
        ("text/html", None),
        ("application/json", None),
        ("image/png", None),
        ("video/", None),
        ("video/x y", None),
    ],
)
async def test_content_types(
    raw_server: Callable[[bytes], Awaitable[str]],
    read: Read,
    given: str,
    kind: str | None,
) -> None:
    head = f"Content-Type: {given}\r\n" if given else ""
    url = await raw_server(f"HTTP/1.1 200 OK\r\n{head}Content-Length: 2\r\n\r\nab".encode())
    if kind:
        assert await read(url + "/a", url=url) == (kind, b"ab")
    else:
        with pytest.raises(UpstreamUnclear, match="not a video"):
            await read(url + "/a", url=url)


async def test_announced_size_over_the_limit_is_refused_unread(
    provider: Any, connect: Connect
) -> None:
    provider.answers(VIDEO)
    with pytest.raises(OutputRejected):
        async with connect({"http.maxOutputBytes": 9}).fetch(provider.url + "/a.mp4"):
            pytest.fail("it was opened")


async def test_size_over_the_limit_is_noticed_while_reading(provider: Any, read: Read) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "video/mp4"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for _ in range(4):
            await response.write(b"x" * 3)
        return response

    provider.answers(stream)
    url = provider.url + "/a.mp4"
    assert len((await read(url, changes={"http.maxOutputBytes": 12}))[1]) == 12
    with pytest.raises(OutputRejected):
        await read(url, changes={"http.maxOutputBytes": 9})


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nContent-Length: 100\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nContent-Encoding: gzip\r\n\r\nabc",
        b"nonsense\r\n\r\n",
    ],
    ids=["no answer", "short", "short chunks", "empty", "encoded", "nonsense"],
)
async def test_broken_body_is_unclear_and_never_a_short_video(
    raw_server: Callable[[bytes], Awaitable[str]],
    read: Read,
    answer: bytes,
) -> None:
    url = await raw_server(answer)
    with pytest.raises(UpstreamUnclear):
        await read(url + "/a.mp4", url=url)


async def test_stalled_body_times_out(
    provider: Any, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "video/mp4", "Content-Length": "9"})
        await response.prepare(request)
        await response.write(b"abc")
        await asyncio.Event().wait()
        return response

    monkeypatch.setattr(connections, "_STALL_SECONDS", 0.3)
    provider.answers(stall)
    with pytest.raises(UpstreamUnclear):
        await read(provider.url + "/a.mp4")


async def test_address_that_cannot_be_reached_is_busy(cdn: Any, read: Read) -> None:
    with pytest.raises(UpstreamBusy):
        await read("http://nowhere.invalid/a.mp4", url="http://nowhere.invalid")


async def test_errors_of_the_reader_pass_through(provider: Any, connect: Connect) -> None:
    provider.answers(VIDEO)
    with pytest.raises(OSError, match="disk full"):
        async with connect().fetch(provider.url + "/a.mp4"):
            raise OSError("disk full")


async def test_closed_connections_are_busy_and_open_nothing() -> None:
    made = connections.Connections(AddressPolicy(), limit=1, timeout=1.0)
    await made.close()
    with pytest.raises(UpstreamBusy):
        assert made.calls
