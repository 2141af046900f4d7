"""The bucket's adapter against a store that is slow, cut off, denied, overloaded or killed."""

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.retries.standard import ExponentialBackoff

from gateway_core.storage.objects import (
    MOST_STREAMS,
    ObjectMissing,
    ObjectTooLarge,
    StoreUnavailable,
)
from gateway_core.storage.s3 import client as client_module
from gateway_core.storage.s3 import reading
from gateway_core.storage.s3 import store as store_module
from gateway_core.storage.s3.client import build_client
from gateway_core.storage.s3.store import S3Store
from tests.servers.s3 import Call, S3Faults, S3Server, open_bucket
from tests.servers.s3_double import S3Double
from tests.servers.server import find_free_port

MIB = 1024 * 1024


@pytest.fixture(params=["s3_double", pytest.param("s3_server", marks=pytest.mark.full)])
def s3(request: pytest.FixtureRequest) -> S3Server | S3Double:
    server: S3Server | S3Double = request.getfixturevalue(request.param)
    return server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat calls at once."""
    monkeypatch.setattr(reading, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.01)


@pytest.fixture
async def faults(s3: S3Server) -> AsyncIterator[S3Faults]:
    async with S3Faults(s3.url) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3: S3Server, faults: S3Faults) -> Iterator[S3Store]:
    """By way of the proxy."""
    with open_bucket(s3, endpoint=faults.url) as store:
        yield store


def is_method(method: str, query: str = "") -> Callable[[Call], bool]:
    return lambda call: call.method == method and query in call.query


async def flow(size: int, chunk: int = MIB) -> AsyncIterator[bytes]:
    for start in range(0, size, chunk):
        yield bytes(min(chunk, size - start))


async def wait_until(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def read_on(chunks: AsyncIterator[bytes]) -> None:
    """To the end, which may only hold what the object held at first."""
    async for chunk in chunks:
        assert b"x" not in chunk


async def do_everything(store: S3Store) -> list[Callable[[], Any]]:
    """Every call of the port, for what is said when none can work."""

    async def listing() -> None:
        async for _ in store.list_entries(""):
            pass

    return [
        lambda: store.put("a", b"x"),
        lambda: store.put_stream("a", flow(1), max_bytes=1),
        lambda: store.put_stream("a", flow(9 * MIB), max_bytes=9 * MIB),
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: anext(aiter(store.stream("a"))),
        lambda: anext(aiter(store.stream("a", 0, 0))),
        lambda: store.delete("a"),
        lambda: store.delete_many(["a", "b"]),
        listing,
    ]


class TestOverload:
    async def test_store_that_asks_to_slow_down_is_asked_again(
        self, bucket: S3Store, faults: S3Faults
    ) -> None:
        for method in ("PUT", "GET", "HEAD", "POST"):
            faults.expect(is_method(method), slow_down=True)
        await bucket.put("a", b"abc")
        assert await bucket.get("a") == b"abc"
        assert (await bucket.head("a")).bytes == 3
        await bucket.delete_many(["a"])
        assert [e async for e in bucket.list_entries("")] == []

    async def test_store_that_stays_overloaded_is_unavailable(
        self, bucket: S3Store, faults: S3Faults
    ) -> None:
        faults.expect(lambda _: True, times=1000, slow_down=True)
        with pytest.raises(StoreUnavailable, match=r"PutObject: the store is overloaded .*Slow"):
            await bucket.put("a", b"abc")
        with pytest.raises(StoreUnavailable):
            await bucket.get("a")
        assert len(faults.calls) == 2 * client_module.ATTEMPTS

    async def test_no_more_calls_than_threads_are_under_way(
        self, bucket: S3Store, faults: S3Faults
    ) -> None:
        await bucket.put("a", b"abc")
        gate = asyncio.Event()
        faults.expect(is_method("GET"), times=1000, gate=gate)
        reads = [asyncio.create_task(bucket.get("a")) for _ in range(100)]
        await wait_until(lambda: faults.under_way == store_module.THREADS)
        gate.set()
        assert await asyncio.gather(*reads) == [b"abc"] * 100
        assert faults.most == store_module.THREADS

    async def test_no_more_streams_than_buffers_are_taken_in(self, bucket: S3Store) -> None:
        begun, gate = [], asyncio.Event()

        async def source(number: int) -> AsyncIterator[bytes]:
            begun.append(number)
            yield b"x"
            await gate.wait()

        count = MOST_STREAMS + 8
        puts = [
            asyncio.create_task(bucket.put_stream(f"a/{n}", source(n), max_bytes=9))
            for n in range(count)
        ]
        await wait_until(lambda: len(begun) == MOST_STREAMS)
        gate.set()
        assert {stored.bytes for stored in await asyncio.gather(*puts)} == {1}
        assert len(begun) == count


class TestBrokenAnswers:
    async def test_answer_that_breaks_off_is_continued(
        self, bucket: S3Store, faults: S3Faults
    ) -> None:
        whole = os.urandom(3 * MIB + 17)
        await bucket.put("a", whole)
        for start, length in ((0, None), (5, None), (1000, 2 * MIB)):
            for cut in (0, 1, MIB + 5, 2 * MIB - 1):
                faults.expect(is_method("GET"), cut_after=cut)
            begin = len(faults.calls)
            parts = [chunk async for chunk in bucket.stream("a", start, length)]
            end = None if length is None else start + length
            assert hashlib.sha256(b"".join(parts)).digest() == (
                hashlib.sha256(whole[start:end]).digest()
            )
            made = faults.calls[begin:]
            assert len(made) > 2
            assert all("If-Match" in call.headers for call in made[1:])
        faults.expect(is_method("GET"), cut_after=MIB)
        assert await bucket.get("a") == whole

    async def test_response_that_keeps_breaking_off_is_an_error(
        self, bucket: S3Store, faults: S3Faults
    ) -> None:
        await bucket.put("a", bytes(MIB))
        faults.expect(is_method("GET"), times=1000, cut_after=100)
        with pytest.raises(StoreUnavailable):
            await bucket.get("a")
        with pytest.raises(StoreUnavailable):
            async for _ in bucket.stream("a"):
                pass

    async def test_read_of_a_replaced_object_is_not_continued(
        self, bucket: S3Store, faults: S3Faults
    ) -> None:
        await bucket.put("a", bytes(4 * MIB))
        faults.expect(is_method("GET"), cut_after=2 * MIB + 5)
        async with aclosing(bucket.stream("a")) as chunks:
            assert await anext(chunks) == bytes(MIB)
            await bucket.put("a", b"x" * 4 * MIB)
            with pytest.raises(StoreUnavailable, match="replaced while it was read"):
                await read_on(chunks)

    async def test_put_whose_answer_is_lost_is_made_again(
        self, bucket: S3Store, faults: S3Faults
    ) -> None:
        faults.expect(is_method("PUT"), lose_answer=True)
        await bucket.put("a", b"abc")
        assert await bucket.get("a") == b"abc"
        assert [e.key async for e in bucket.list_entries("")] == ["a"]

    async def test_completion_whose_answer_is_lost_has_happened(
        self, bucket: S3Store, faults: S3Faults, s3: S3Server
    ) -> None:
        size = 20 * MIB + 1
        faults.expect(is_method("PUT", "partNumber=2"), lose_answer=True)
        faults.expect(is_method("POST", "uploadId"), lose_answer=True)
        stored = await bucket.put_stream("a", flow(size), max_bytes=size)
        assert (stored.bytes, stored.sha256) == (size, hashlib.sha256(bytes(size)).hexdigest())
        assert (await bucket.head("a")).bytes == size
        assert s3.list_uploads() == []

    async def test_completion_that_did_not_happen_is_an_error(
        self, bucket: S3Store, faults: S3Faults, s3: S3Server
    ) -> None:
        await bucket.put("a", b"before")
        faults.expect(is_method("POST", "uploadId"), times=1000, slow_down=True)
        with pytest.raises(StoreUnavailable, match="CompleteMultipartUpload"):
            await bucket.put_stream("a", flow(9 * MIB), max_bytes=9 * MIB)
        assert await bucket.get("a") == b"before"
        await wait_until(lambda: s3.list_uploads() == [])


class TestGivingUp:
    @pytest.mark.parametrize("failure", [ConnectionResetError, ObjectTooLarge])
    async def test_failed_stream_leaves_no_parts(
        self, bucket: S3Store, s3: S3Server, failure: type[Exception]
    ) -> None:
        async def fail() -> AsyncIterator[bytes]:
            async for chunk in flow(17 * MIB):
                yield chunk
            raise ConnectionResetError

        limit = 10**9 if failure is ConnectionResetError else 16 * MIB
        with pytest.raises(failure):
            await bucket.put_stream("a", fail(), max_bytes=limit)
        await wait_until(lambda: s3.list_uploads() == [])
        with pytest.raises(ObjectMissing):
            await bucket.head("a")

    @pytest.mark.parametrize("query", ["uploads", "partNumber=1", "partNumber=2", "uploadId"])
    async def test_stream_cancelled_in_a_call_leaves_no_parts(
        self, bucket: S3Store, faults: S3Faults, s3: S3Server, query: str
    ) -> None:
        gate = asyncio.Event()
        method = "PUT" if "partNumber" in query else "POST"
        held = faults.expect(is_method(method, query), gate=gate)
        writing = asyncio.create_task(bucket.put_stream("a", flow(17 * MIB), max_bytes=10**9))
        await asyncio.wait_for(held.reached.wait(), 20)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(writing, 20)
        gate.set()
        await wait_until(lambda: s3.list_uploads() == [] and not faults.under_way)
        # every thread of the store's is free again
        barrier = threading.Barrier(store_module.THREADS)
        waits = [bucket._streams.run(barrier.wait, 20) for _ in range(store_module.THREADS)]
        assert len(await asyncio.gather(*waits)) == store_module.THREADS

    async def test_cancelled_read_gives_its_thread_and_connection_back(
        self, bucket: S3Store, faults: S3Faults
    ) -> None:
        await bucket.put("a", bytes(MIB))
        gate = asyncio.Event()
        held = faults.expect(is_method("GET"), gate=gate)

        async def read() -> None:
            async with aclosing(bucket.stream("a")) as chunks:
                await anext(chunks)

        reading = asyncio.create_task(read())
        await asyncio.wait_for(held.reached.wait(), 20)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(reading, 20)
        gate.set()
        await wait_until(lambda: not faults.under_way)
        assert await bucket.get("a") == bytes(MIB)

    async def test_reader_that_leaves_does_not_hold_its_connection(
        self, bucket: S3Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bodies, get = list[Any](), bucket._client.get_object

        def note(**options: Any) -> Any:
            bodies.append((answer := get(**options))["Body"])
            return answer

        monkeypatch.setattr(bucket._client, "get_object", note)
        await bucket.put("a", bytes(6 * MIB))
        async with aclosing(bucket.stream("a")) as chunks:
            await anext(chunks)
        assert len(bodies) == 1
        await wait_until(lambda: bodies[0]._raw_stream.closed)

    async def test_old_leftovers_go_and_new_ones_stay(
        self, bucket: S3Store, s3: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = s3.client()
        inside, beside = bucket._prefix + "a/b", bucket._prefix + "b/a"
        for name in (inside, beside, "elsewhere/a/b"):
            plain.create_multipart_upload(Bucket=s3.bucket, Key=name)
        await bucket.remove_leftovers("a/")
        assert sorted(s3.list_uploads()) == sorted(["elsewhere/a/b", inside, beside])
        monkeypatch.setattr(store_module, "LEFTOVER_AGE", timedelta(seconds=-5))
        await bucket.remove_leftovers("a/")
        assert sorted(s3.list_uploads()) == sorted(["elsewhere/a/b", beside])
        await bucket.remove_leftovers("b/")
        with open_bucket(s3, prefix="elsewhere") as other:
            await other.remove_leftovers("a/")
        assert s3.list_uploads() == []

    async def test_sweep_goes_on_where_another_was_first(
        self, bucket: S3Store, s3: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_module, "LEFTOVER_AGE", timedelta(seconds=-5))
        plain = s3.client()
        for name in "xyz":
            plain.create_multipart_upload(Bucket=s3.bucket, Key=f"{bucket._prefix}a/{name}")
        abort = bucket._client.abort_multipart_upload
        monkeypatch.setattr(
            bucket._client,
            "abort_multipart_upload",
            lambda **names: (plain.abort_multipart_upload(**names), abort(**names)),
        )
        await bucket.remove_leftovers("a/")
        assert s3.list_uploads() == []


class TestRefusals:
    async def test_missing_bucket_is_no_missing_object(self, s3: S3Server) -> None:
        with open_bucket(s3, bucket="nowhere") as store:
            for call in await do_everything(store):
                with pytest.raises(StoreUnavailable, match=r"bucket nowhere: .*no such bucket"):
                    await call()
            await store.remove_leftovers("a/")

    @pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
    async def test_error_of_wrong_credentials_does_not_hold_them(
        self, s3: S3Server, wrong: str
    ) -> None:
        if wrong == "AWS_SECRET_ACCESS_KEY" and isinstance(s3, S3Double):
            pytest.skip("the double checks no signatures")
        credentials = {**s3.credentials, wrong: "wrong-" + "0123456789" * 3}
        with open_bucket(s3, credentials=credentials) as store:
            for call in await do_everything(store):
                # the real server has a code of its own for a key id that it does not know
                with pytest.raises(StoreUnavailable, match=r"UserNotFound|credentials") as caught:
                    await call()
                for secret in credentials.values():
                    assert secret not in str(caught.value)

    async def test_missing_credentials_are_named(
        self, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in s3.credentials:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        store = S3Store(build_client(s3.url, "us-east-1", "auto"), "objects")
        with pytest.raises(StoreUnavailable, match="no credentials were found"):
            await store.get("a")
        store.close()

    async def test_store_that_deletes_only_one_by_one_is_served(
        self, bucket: S3Store, faults: S3Faults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for key in ("a", "b/c"):
            await bucket.put(key, b"")

        def refuse(*_: object, **__: object) -> None:
            raise bucket._client.exceptions.ClientError(
                {"Error": {"Code": "NotImplemented"}, "ResponseMetadata": {"HTTPStatusCode": 501}},
                "DeleteObjects",
            )

        monkeypatch.setattr(bucket._client, "delete_objects", refuse)
        await bucket.delete_many(["a", "b/c", "never"])
        assert [e async for e in bucket.list_entries("")] == []

    async def test_names_that_are_no_keys_are_not_seen(self, bucket: S3Store, s3: S3Server) -> None:
        await bucket.put("a/b", b"")
        for name in ("a/of others", "a/é"):
            s3.client().put_object(Bucket=s3.bucket, Key=bucket._prefix + name, Body=b"")
        assert [e.key async for e in bucket.list_entries("")] == ["a/b"]


class TestAbsence:
    async def test_refused_connection_is_reported_soon(self, s3: S3Server) -> None:
        endpoint = f"http://127.0.0.1:{find_free_port()}"
        with open_bucket(s3, endpoint=endpoint) as store:
            begin = time.monotonic()
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await store.get("a")
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await store.put_stream("a", flow(9 * MIB), max_bytes=10**9)
            assert time.monotonic() - begin < 60

    async def test_silent_store_is_given_up(
        self, s3: S3Server, faults: S3Faults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_module, "READ_SECONDS", 0.5)
        gate = asyncio.Event()
        with open_bucket(s3, endpoint=faults.url) as store:
            faults.expect(is_method("GET"), times=1000, gate=gate)
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                await store.get("a")
            gate.set()

    @pytest.mark.full
    async def test_store_killed_under_way_serves_again(self) -> None:
        with S3Server() as server, open_bucket(server, prefix="") as store:
            whole = os.urandom(20 * MIB)
            await store.put("old", whole)
            reached, gate = asyncio.Event(), asyncio.Event()

            async def source() -> AsyncIterator[bytes]:
                yield whole[: 17 * MIB]
                reached.set()
                await gate.wait()
                yield whole[17 * MIB :]

            writing = asyncio.create_task(store.put_stream("new", source(), max_bytes=10**9))
            async with aclosing(store.stream("old")) as chunks:
                received = await anext(chunks)
                await reached.wait()
                server.kill()
                gate.set()
                with pytest.raises(StoreUnavailable):
                    await writing
                server.start()
                async for chunk in chunks:
                    received += chunk
            assert received == whole
            with pytest.raises(ObjectMissing):
                await store.head("new")
            stored = await store.put_stream("new", flow(9 * MIB), max_bytes=10**9)
            assert (await store.head("new")).bytes == stored.bytes == 9 * MIB
