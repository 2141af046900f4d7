"""Client of upstreams: responses in any pieces, broken off anywhere, limits of time and memory."""

import asyncio
import hashlib
import ssl
import tracemalloc
from pathlib import Path

import pytest

from gateway_cli.local.certificates import write_cluster_keys
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.llm.client import Client, encode_headers
from gateway_core.llm.connection import HIGH_WATER, MOST_HEAD_BYTES, READ_BYTES
from gateway_core.providers.upstream import (
    UpstreamInterrupted,
    UpstreamTimedOut,
    UpstreamUnclear,
    UpstreamUnreachable,
)
from tests.unit.llm.conftest import (
    OK,
    SECONDS,
    answer_once,
    answer_with,
    listen,
    post,
    post_and_read,
    read_request,
    reset,
    wait_for_eof,
    wait_until_paused,
    write_apart,
)

BODY = "data: {“ä”}\n\n".encode()
HALF = len(BODY) // 2
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%x;part=1\r\n"
    % HALF
    + BODY[:HALF]
    + b"\r\n%x\r\n" % (len(BODY) - HALF)
    + BODY[HALF:]
    + b"\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH
UNTIL_EOF = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BODY
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
KEPT = {"length": LENGTH, "chunked": CHUNKED, "interim": INTERIM, "empty": EMPTY}


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a TLS server, and of a client that trusts it."""
    keys = write_cluster_keys(tmp_path_factory.mktemp("tls"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys.certificate, keys.key)
    return server, ssl.create_default_context(cafile=str(Path(keys.certificate)))


@pytest.mark.parametrize("name", KEPT)
async def test_response_may_be_split_anywhere(name):
    message = KEPT[name]
    splits = iter(range(1, len(message)))

    async def serve(reader, writer):
        while True:
            await read_request(reader)
            at = next(splits)
            await write_apart(writer, message[:at], message[at:])

    async with listen(serve) as upstream:
        client = upstream.client()
        for _ in range(1, len(message)):
            assert await post_and_read(client) == (b"" if name == "empty" else BODY)
        assert upstream.connections == 1
        client.close()


async def test_head_has_lower_case_names_and_no_interim_headers():
    async with listen(answer_with(INTERIM)) as upstream:
        response = await post(upstream.client())
        assert response.status == 200
        assert response.headers == {b"content-length": b"%d" % len(BODY)}
        response.abort()


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("is_reset", [False, True])
async def test_connection_that_ends_anywhere_is_never_a_whole_response(name, is_reset):
    message = KEPT[name]
    body_at = message.rindex(b"HTTP/1.1")
    body_at = message.index(b"\r\n\r\n", body_at) + 4
    cuts = iter(range(len(message)))

    async def serve(reader, writer):
        await read_request(reader)
        await write_apart(writer, message[: next(cuts)])
        if is_reset:
            reset(writer)

    async with listen(serve) as upstream:
        client = upstream.client()
        for cut in range(len(message)):
            if cut < body_at:
                with pytest.raises(UpstreamUnclear) as caught:
                    await post(client)
                assert not isinstance(caught.value, UpstreamInterrupted)
            else:
                response = await post(client)
                assert response.status == 200
                with pytest.raises(UpstreamInterrupted):
                    await response.read(1 << 20)
        assert upstream.connections == len(message)


async def test_bytes_before_the_break_are_delivered():
    async with listen(answer_once(CHUNKED[:-5])) as upstream:
        response = await post(upstream.client())
        taken = [await response.read_some()]
        while sum(map(len, taken)) < len(BODY):
            taken.append(await response.read_some())
        assert b"".join(taken) == BODY
        with pytest.raises(UpstreamInterrupted):
            await response.read_some()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_response_without_length_ends_with_its_connection(is_tls, contexts):
    server, tls = contexts if is_tls else (None, None)
    async with listen(answer_once(UNTIL_EOF[:-3], UNTIL_EOF[-3:]), server) as upstream:
        client = upstream.client(tls=tls)
        assert [await post_and_read(client) for _ in range(2)] == [BODY, BODY]
        assert upstream.connections == 2


async def test_reset_response_without_length_is_interrupted():
    read = asyncio.Event()

    async def serve(reader, writer):
        await read_request(reader)
        await write_apart(writer, UNTIL_EOF)
        await read.wait()
        reset(writer)

    async with listen(serve) as upstream:
        response = await post(upstream.client())
        assert await response.read_some() == BODY
        read.set()
        with pytest.raises(UpstreamInterrupted):
            await response.read_some()


@pytest.mark.parametrize(
    "head",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 2 * MOST_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MOST_HEAD_BYTES,
        b"HTTP/1.1 100 Continue\r\n\r\n" * MOST_HEAD_BYTES,
    ],
)
async def test_head_that_is_encoded_or_too_long_is_unclear(head):
    async with listen(answer_once(head, holds=True)) as upstream:
        with pytest.raises(UpstreamUnclear):
            await post(upstream.client())
        await upstream.wait_until_open(0)


@pytest.mark.parametrize("rest", [b"zz\r\n", b"0\r\nx: " + b"x" * 2 * MOST_HEAD_BYTES])
async def test_body_that_is_invalid_is_interrupted(rest):
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
    async with listen(answer_once(head + rest, holds=True)) as upstream:
        response = await post(upstream.client())
        async with asyncio.timeout(SECONDS):
            with pytest.raises(UpstreamInterrupted):
                await response.read(100)
        await upstream.wait_until_open(0)


@pytest.mark.parametrize("is_tls", [False, True])
async def test_slow_reader_bounds_what_is_buffered(is_tls, contexts):
    content = bytes(range(256)) * (64 * 1024)

    async def serve(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
        await writer.drain()
        await wait_for_eof(reader)

    server, tls = contexts if is_tls else (None, None)
    async with listen(serve, server) as upstream:
        client = upstream.client(tls=tls)
        response = await post(client)
        await wait_until_paused(response)
        first = await response.read_some()
        assert HIGH_WATER < len(first) <= HIGH_WATER + READ_BYTES
        digest = hashlib.sha256(first)
        while piece := await response.read_some():
            assert len(piece) <= HIGH_WATER + READ_BYTES
            digest.update(piece)
        assert digest.digest() == hashlib.sha256(content).digest()
        client.close()


@pytest.mark.parametrize(("is_tls", "most"), [(False, 40_000), (True, 200_000)])
async def test_connection_takes_little_memory(is_tls, most, contexts):
    """Both ends are in this process."""
    count = 20

    server, tls = contexts if is_tls else (None, None)
    async with listen(answer_once(LENGTH[:-1], holds=True), server) as upstream:
        client = upstream.client(limit=count + 1, tls=tls)
        responses = [await post(client)]
        tracemalloc.start()
        try:
            responses += [await post(client) for _ in range(count)]
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for response in responses:
            response.abort()
    assert taken / count < most


async def test_longer_body_than_asked_for_closes_the_connection():
    async with listen(answer_with(LENGTH[:-1], LENGTH[-1:])) as upstream:
        response = await post(upstream.client())
        with pytest.raises(UpstreamUnclear):
            await response.read(len(BODY) - 2)
        await upstream.wait_until_open(0)


async def test_large_request_arrives_whole():
    content = bytes(range(256)) * (128 * 1024)

    async def serve(reader, writer):
        _, body = await read_request(reader)
        writer.write(OK if body == content else EMPTY)
        await wait_for_eof(reader)

    async with listen(serve) as upstream:
        client = upstream.client()
        assert await post_and_read(client, content) == b"ok"
        client.close()


async def test_refusal_of_an_unfinished_request_is_returned_at_once():
    refused = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\n")
        await refused.wait()
        writer.write(b"no")
        await wait_for_eof(reader)

    async with listen(serve) as upstream:
        client = upstream.client()
        response = await post(client, bytes(32 * 2**20))
        assert response.status == 413
        refused.set()
        assert await response.read(10) == b"no"
        await upstream.wait_until_open(0)


async def test_upstream_that_reads_nothing_times_out():
    async def serve(reader, writer):
        reader._transport.pause_reading()
        await upstream_done.wait()

    upstream_done = asyncio.Event()
    async with listen(serve) as upstream:
        with pytest.raises(UpstreamTimedOut):
            await post(upstream.client(idle=0.05), bytes(32 * 2**20))
        upstream_done.set()


async def test_head_that_does_not_come_times_out():
    async with listen(answer_once(INTERIM[: -len(LENGTH)], LENGTH[:20], holds=True)) as upstream:
        with pytest.raises(UpstreamTimedOut):
            await post(upstream.client(head=0.05))
        await upstream.wait_until_open(0)


async def test_silence_between_bytes_times_out():
    async with listen(answer_once(LENGTH[:-1], holds=True)) as upstream:
        response = await post(upstream.client(idle=0.05))
        assert await response.read_some() == BODY[:-1]
        with pytest.raises(UpstreamTimedOut):
            await response.read_some()
        await upstream.wait_until_open(0)


async def test_time_of_a_slow_reader_is_not_the_upstreams():
    count = HIGH_WATER // READ_BYTES + 1
    content = bytes(count * READ_BYTES)

    async def serve(reader, writer):
        await read_request(reader)
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(content) + 1)
        # nothing is left to be read when the client pauses
        await write_apart(writer, head, *[bytes(READ_BYTES)] * count)
        await wait_for_eof(reader)

    async with listen(serve) as upstream:
        response = await post(upstream.client(idle=0.05))
        await wait_until_paused(response)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.Event().wait()
        taken = 0
        async with asyncio.timeout(SECONDS):
            while taken < len(content):
                taken += len(await response.read_some())
            with pytest.raises(UpstreamTimedOut):
                await response.read_some()


@pytest.mark.parametrize("body", [b"{}", bytes(32 * 2**20)], ids=["head", "request"])
async def test_cancelled_call_closes_its_connection(body):
    begun = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        if len(body) > 2:
            reader._transport.pause_reading()
            await cancelled.wait()
            reader._transport.resume_reading()
        await wait_for_eof(reader)

    cancelled = asyncio.Event()
    async with listen(serve) as upstream:
        call = asyncio.create_task(post(upstream.client(), body))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        cancelled.set()
        await upstream.wait_until_open(0)


async def test_abort_closes_the_connection_and_ends_the_response():
    async with listen(answer_once(LENGTH[:-1], holds=True)) as upstream:
        response = await post(upstream.client())
        response.abort()
        await upstream.wait_until_open(0)
        assert await response.read_some() == BODY[:-1]
        with pytest.raises(UpstreamInterrupted):
            await response.read_some()


async def test_refused_connection_is_unreachable(unused_tcp_port):
    client = Client(f"http://127.0.0.1:{unused_tcp_port}", 1)
    for _ in range(2):
        with pytest.raises(UpstreamUnreachable):
            await post(client)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_forbidden_address_is_not_connected_to(host):
    async with listen(answer_with(OK)) as upstream:
        client = Client(f"http://{host}:{upstream.port}", 1, policy=AddressPolicy())
        with pytest.raises(UpstreamUnreachable):
            await post(client)
        assert upstream.connections == 0


async def test_addresses_of_a_name_are_tried_in_order(monkeypatch):
    async def resolve(*_args, **_options):
        return [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.77", "127.0.0.1")]

    async with listen(answer_with(OK)) as upstream:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        assert await post_and_read(Client(f"http://some.name:{upstream.port}", 1)) == b"ok"


async def test_handshake_that_does_not_end_is_unreachable(contexts):
    async def serve(reader, writer):
        await wait_for_eof(reader)

    async with listen(serve) as upstream:
        with pytest.raises(UpstreamUnreachable):
            await post(upstream.client(tls=contexts[1], connect=0.05))


async def test_certificate_of_an_unknown_authority_is_unreachable(contexts):
    async with listen(answer_with(OK), contexts[0]) as upstream:
        with pytest.raises(UpstreamUnreachable):
            await post(upstream.client(tls=ssl.create_default_context()))


async def test_request_has_its_path_host_length_and_headers():
    heads = []

    async def serve(reader, writer):
        heads.append(await read_request(reader))
        writer.write(OK)

    async with listen(serve) as upstream:
        client = Client(f"http://127.0.0.1:{upstream.port}/base/", 1)
        head = client.prepare("POST", "/v1/a%2Fb?c=d", {"User-Agent": "x", "accept": "y"})
        await (await client.send(head + encode_headers({"traceparent": "z"}), b"{}")).read(9)
    [(head, body)] = heads
    assert body == b"{}"
    assert head == (
        b"POST /base/v1/a%%2Fb?c=d HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
        b"accept-encoding: identity\r\nuser-agent: x\r\naccept: y\r\ntraceparent: z\r\n"
        b"content-length: 2\r\n\r\n" % upstream.port
    )


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/a b", {}),
        ("/a\r\nx: y", {}),
        ("/ä", {}),
        ("/", {"x": "y\r\nz: 1"}),
        ("/", {"x": "\0"}),
        ("/", {"x y": "z"}),
        ("/", {"": "z"}),
    ],
)
def test_characters_that_http_forbids_are_refused(path, headers):
    with pytest.raises(ValueError, match="not a"):
        Client("http://127.0.0.1:1", 1).prepare("POST", path, headers)


@pytest.mark.parametrize(
    "url", ["ftp://a", "http://", "a", "http://a?b", "http://a#b", "http://a:x"]
)
def test_invalid_urls_are_refused(url):
    with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
        Client(url, 1)
