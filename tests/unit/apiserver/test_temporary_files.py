"""Temporary files (contract §2.5): made from a URL, of base64 or by a PUT, and read by address."""

import asyncio
import base64
import json
from typing import Any

import pytest

from gateway_apiserver.surfaces.temporary_files import creation
from gateway_core.files.addresses import PUT_SECONDS, TICKET_SECONDS
from gateway_core.files.files import USER_DATA_BYTES
from gateway_core.redis.link import CountersUnavailable
from tests.unit.apiserver.gateway import call
from tests.unit.apiserver.temporary_files import PATH, PNG, Bench

KEYS = {"file_name", "url", "size_bytes", "mime_type", "created_at", "expires_at"}


GOOD = {"source": {"type": "base64", "data": "AAAA"}}


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_base64_becomes_a_file_that_the_media_host_serves(bench: Bench) -> None:
    answer = await bench.create(file_name="some/pic\u00fc.png")
    assert answer.status == 201, answer.body
    made = answer.json
    assert set(made) == KEYS
    assert (made["file_name"], made["size_bytes"]) == ("pic\u00fc.png", len(PNG))
    assert made["mime_type"] == "image/png"
    [obj] = bench.list_files()
    request = obj["spec"]["request"]
    assert (request["purpose"], request["bytes"]) == ("temporary", len(PNG))
    assert made["expires_at"] == request["expirationTime"]
    assert await bench.read_used() == len(PNG)
    # nothing of the account, the object or the store is told
    for secret in ("demo", obj["metadata"]["name"][5:], request["segments"][0]["key"]):
        assert secret not in made["url"]
    shown = await bench.read(made["url"])
    assert (shown.status, shown.body) == (200, PNG)
    assert shown.headers["content-type"] == "image/png"
    assert shown.headers["content-disposition"].startswith("attachment; filename=")
    part = await bench.read(made["url"], Range="bytes=8-11")
    assert (part.status, part.body) == (206, PNG[8:12])


async def test_read_url_expires_and_cannot_be_altered(bench: Bench) -> None:
    url = (await bench.create()).json["url"]
    token, name = url.rsplit("/", 2)[1:]
    for forged in (token[:-1] + ("A" if token[-1] != "A" else "B"), token + "=", "A" * 80, "%00"):
        assert (await bench.read(url.replace(token, forged))).status == 404
    assert (await bench.read(url, "PUT")).status == 405
    bench.ahead = 24 * 3600 - 60
    assert (await bench.read(url)).status == 200
    bench.ahead = 24 * 3600 + 1
    assert (await bench.read(url)).status == 404
    assert name == "file"


async def test_executable_types_are_served_as_octet_stream(bench: Bench) -> None:
    page = b"<!DOCTYPE html><html><script>alert(1)</script></html>"
    made = (await bench.create(page, file_name="a.html")).json
    assert made["mime_type"] == "text/html"
    shown = await bench.read(made["url"])
    assert shown.headers["content-type"] == "application/octet-stream"
    assert shown.headers["x-content-type-options"] == "nosniff"


async def test_damaged_bytes_are_not_served(bench: Bench) -> None:
    url = (await bench.create()).json["url"]
    [key] = bench.gateway.store.contents
    bench.gateway.store.contents[key] = PNG[:-1] + b"?"
    assert (await bench.read(url)).status == 500
    bench.gateway.store.contents[key] = PNG[:-1]
    assert (await bench.read(url)).status == 503
    del bench.gateway.store.contents[key]
    assert (await bench.read(url)).status == 404
    bench.gateway.store.away = True
    assert (await bench.read(url)).status == 503


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "data"),
        ("====", "valid base64"),
        ("AAA", "valid base64"),
        ("AA==AAAA", "valid base64"),
        ("A\u00fcAA", "valid base64"),
        ("data:text/plain,hello", "not of base64"),
        ("data:text/plain;base64,", "is empty"),
        (" \n ", "is empty"),
        ("A" * 30_001, "valid base64"),
        ("A" * 30_000 + "\u00fc" * 4, "valid base64"),
    ],
)
async def test_bad_base64_leaves_nothing(bench: Bench, data: str, problem: str) -> None:
    answer = await bench.post_data(data)
    assert answer.status == 400
    assert problem in answer.json["errors"]["source"][0]
    assert bench.list_files() == []
    assert bench.gateway.store.contents == {}
    assert await bench.read_used() == 0


@pytest.mark.parametrize("size", [1, 2, 3, 60_000])
@pytest.mark.parametrize("head", ["", "data:image/png;base64,", "DATA:;BASE64,"])
async def test_base64_may_be_a_data_url_and_have_whitespace(
    bench: Bench, size: int, head: str
) -> None:
    data = (bytes(range(256)) * 250)[:size]
    answer = await bench.post_data(f" {head}{base64.encodebytes(data).decode()}")
    assert answer.status == 201, answer.body
    assert list(bench.gateway.store.contents.values()) == [data]


@pytest.mark.parametrize("step", [7, 1000])
async def test_long_base64_may_have_escapes_and_any_chunks(bench: Bench, step: int) -> None:
    data = bytes(range(256)) * 60
    text = base64.b64encode(data).decode().replace("/", "\\/").replace("A", "\\u0041")
    raw = f'{{"file_name":"q\\"\\\\","source":{{"data":"{text}","type":"base64"}}}}'.encode()
    headers = [
        ("Authorization", f"Bearer {bench.gateway.key}"),
        ("Content-Type", "application/json"),
    ]
    chunks = [raw[start : start + step] for start in range(0, len(raw), step)]
    answer = await call(bench.gateway.app, "POST", PATH, headers=headers, chunks=chunks)
    assert answer.status == 201, answer.body
    assert answer.json["file_name"] == "file", "a backslash separates folders"
    assert set(bench.gateway.store.contents.values()) == {data}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"source"}),
        ({"source": "x"}, {"source"}),
        ({"source": {"type": "path", "path": "x"}}, {"source"}),
        ({"source": {"type": "url"}}, {"source"}),
        ({"source": {"type": "url", "url": "ftp://a/b"}}, {"source"}),
        ({"source": {"type": "url", "url": "x"}}, {"source"}),
        ({"source": {"type": "url", "url": "http://a/", "data": "AAAA"}}, {"source"}),
        ({"source": {"type": "url", "url": "http://a/" + "a" * 2048}}, {"source"}),
        ({"source": {"type": "base64", "data": 5}}, {"source"}),
        ({"source": {"type": "base64", "data": "AAAA"}, "file_name": ""}, {"file_name"}),
        ({"source": {"type": "base64", "data": "AAAA"}, "file_name": "a" * 256}, {"file_name"}),
        ({"source": None, "x": 1}, {"source", "x"}),
        # a long text is streamed, and what comes after it is judged as well
        ({"source": {"data": "A" * 40_000, "type": "url"}}, {"source"}),
        ({"source": {"data": "A" * 40_000, "type": "base64"}, "x": 1}, {"x"}),
    ],
)
async def test_invalid_body_is_400(bench: Bench, body: dict[str, Any], fields: set[str]) -> None:
    answer = await bench.post(body)
    assert (answer.status, set(answer.json["errors"])) == (400, fields)
    assert bench.gateway.store.contents == {}


@pytest.mark.parametrize("end", ["", '"}', "\\", '\\x"}}', '\n"}}', '"}} x'])
async def test_malformed_json_leaves_nothing(bench: Bench, end: str) -> None:
    raw = '{"source":{"type":"base64","data":"' + "A" * 40_000 + end
    for malformed in (raw.encode(), b"", b"[]"):
        answer = await bench.post(malformed)
        assert (answer.status, set(answer.json)) == (400, {"error"})
    assert bench.gateway.store.contents == {}


async def test_long_field_other_than_data_is_refused(bench: Bench) -> None:
    source = {"type": "base64", "data": "AAAA"}
    for body in (
        {"source": source, "file_name": "a" * 30_000},
        {"source": {**source, "data": "A" * 40_000}, "file_name": "a" * 90_000},
        {"source": source, "x": [1] * 50_000},
    ):
        answer = await bench.post(body)
        assert answer.status in (400, 413)
    assert bench.gateway.store.contents == {}


async def test_size_limit_is_exact(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert USER_DATA_BYTES == 50 * 1024 * 1024
    monkeypatch.setattr(creation, "USER_DATA_BYTES", 60_000)
    pages = bench.gateway.fetcher.pages
    pages["https://a/most"], pages["https://a/big"] = bytes(60_000), bytes(60_001)
    for size, name, status in ((60_000, "most", 201), (60_001, "big", 413)):
        for answer in (
            await bench.create(bytes(size)),
            await bench.post({"source": {"type": "url", "url": f"https://a/{name}"}}),
        ):
            assert answer.status == status
    assert len(bench.gateway.store.contents) == 2


async def test_temporary_files_have_their_own_pool_for_each_account() -> None:
    bench = Bench(temporary_storage_bytes=100)
    assert (await bench.create(b"x" * 60)).status == 201
    answer = await bench.create(b"x" * 41)
    assert (answer.status, answer.json) == (
        413,
        {"error": "The account's storage limit would be exceeded."},
    )
    assert (await bench.create(b"x" * 40)).status == 201
    assert len(bench.gateway.store.contents) == 2
    assert await bench.read_used() == 100
    bench.gateway.storage.away = True
    assert (await bench.create(b"x")).status == 503


async def test_number_of_temporary_files_is_bounded() -> None:
    bench = Bench(temporary_files_per_account=1)
    assert (await bench.create()).status == 201
    bench.gateway.store.away = True
    assert (await bench.create()).status == 413
    assert len(bench.gateway.store.contents) == 1


async def test_replay_is_answered_when_storage_is_full() -> None:
    bench = Bench(temporary_storage_bytes=250_000)
    data = base64.b64encode(b"x" * 200_000).decode()
    raw = json.dumps({"source": {"type": "base64", "data": data}}).encode()
    headers = {"Content_Length": str(len(raw)), "Idempotency_Key": "k"}
    first = await bench.post(raw, **headers)
    assert first.status == 201, first.body
    again = await bench.post(raw, **headers)
    assert (again.status, again.json) == (201, first.json)


class TestUrls:
    async def test_file_of_url_has_name_of_the_path(self, bench: Bench) -> None:
        url = "https://example.com/a/pic%20one.png?x=1"
        bench.gateway.fetcher.pages[url] = PNG
        answer = await bench.post({"source": {"type": "url", "url": url}})
        assert answer.status == 201, answer.body
        made = answer.json
        assert (made["file_name"], made["mime_type"]) == ("pic one.png", "image/png")
        assert (await bench.read(made["url"])).body == PNG

    async def test_failed_fetch_is_400(self, bench: Bench) -> None:
        pages: dict[str, bytes | str] = {"https://a/x": "leads nowhere", "https://a/empty": b""}
        bench.gateway.fetcher.pages.update(pages)
        for url, text in (("https://a/x", "leads nowhere"), ("https://a/empty", "is empty")):
            answer = await bench.post({"source": {"type": "url", "url": url}})
            assert (answer.status, answer.json["errors"]) == (400, {"source": [text]})
        assert bench.gateway.store.contents == {}


class TestIdempotency:
    async def test_repeated_call_gets_first_response(self, bench: Bench) -> None:
        url = "https://example.com/a.png"
        bench.gateway.fetcher.pages[url] = PNG
        data = base64.b64encode(PNG).decode()
        sources = ({"type": "url", "url": url}, {"type": "base64", "data": data})
        for number, source in enumerate(sources):
            body, key = {"source": source}, f"key-{number}"
            first = await bench.post(body, Idempotency_Key=key)
            again = await bench.post({**body, "file_name": None}, Idempotency_Key=key)
            assert (again.status, again.json) == (201, first.json)
            other = await bench.post({**body, "file_name": "b"}, Idempotency_Key=key)
            assert other.status == 409
            assert other.headers["x-should-retry"] == "false"
        assert bench.gateway.fetcher.fetched == [url]
        assert len(bench.gateway.store.contents) == len(bench.list_files()) == 2
        assert await bench.read_used() == 2 * len(PNG)

    async def test_refused_call_does_not_bind_idempotency_key(self, bench: Bench) -> None:
        bad = {"source": {"type": "base64", "data": "="}}
        assert (await bench.post(bad, Idempotency_Key="k")).status == 400
        first = await bench.post(GOOD, Idempotency_Key="k")
        foreign = await bench.post(GOOD, key=bench.gateway.other_key, Idempotency_Key="k")
        assert (first.status, foreign.status) == (201, 201)
        assert first.json["url"] != foreign.json["url"]

    async def test_expired_file_is_not_replayed(self, bench: Bench) -> None:
        await bench.post(GOOD, Idempotency_Key="k")
        [obj] = bench.list_files()
        await bench.gateway.kube.delete("gatewayfiles", obj["metadata"]["name"])
        answer = await bench.post(GOOD, Idempotency_Key="k")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


class TestPrepared:
    async def test_put_and_confirmed_bytes_become_a_file(self, bench: Bench) -> None:
        prepared = await bench.prepare()
        assert set(prepared) == {"upload_url", "headers", "signed_id"}
        assert isinstance(prepared["headers"], dict)
        early = await bench.confirm(prepared["signed_id"])
        assert (early.status, set(early.json)) == (409, {"error"})
        assert (await bench.put(prepared["upload_url"])).status == 200
        assert bench.list_files() == []
        bench.gateway.storage.away = True
        assert (await bench.confirm(prepared["signed_id"])).status == 503
        bench.gateway.storage.away = False
        first = await bench.confirm(prepared["signed_id"])
        assert first.status == 201, first.body
        assert set(first.json) == KEYS
        assert (first.json["file_name"], first.json["mime_type"]) == ("a.png", "image/png")
        assert (await bench.read(first.json["url"])).body == PNG
        again = await bench.confirm(prepared["signed_id"])
        assert (again.status, again.json) == (201, first.json)
        assert await bench.read_used() == len(PNG)
        assert len(bench.list_files()) == 1

    async def test_prepared_file_claims_storage(self) -> None:
        bench = Bench(temporary_storage_bytes=2 * len(PNG))
        unsent, sent = await bench.prepare(), await bench.prepare()
        assert (await bench.ask_to_put()).status == 413
        await bench.put(sent["upload_url"])
        assert (await bench.confirm(sent["signed_id"])).status == 201
        assert (await bench.confirm(unsent["signed_id"])).status == 409
        assert await bench.read_used() == 2 * len(PNG)

    async def test_failed_confirmation_does_not_undo_concurrent_one(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prepared = await bench.prepare()
        await bench.put(prepared["upload_url"])
        storage, made, both = bench.gateway.storage, asyncio.Event(), asyncio.Event()
        claim, confirm, calls = storage.claim, storage.confirm, 0

        async def claim_or_fail(*args: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls == 2:
                both.set()
                await made.wait()
                raise CountersUnavailable("away")
            await both.wait()
            return await claim(*args)

        async def confirm_and_tell(*args: Any) -> bool:
            is_there = await confirm(*args)
            made.set()
            return is_there

        monkeypatch.setattr(storage, "claim", claim_or_fail)
        monkeypatch.setattr(storage, "confirm", confirm_and_tell)
        confirming = (bench.confirm(prepared["signed_id"]) for _ in range(2))
        answers = await asyncio.gather(*confirming)
        assert sorted(answer.status for answer in answers) == [201, 503]
        [good] = [answer for answer in answers if answer.status == 201]
        assert (await bench.read(good.json["url"])).body == PNG

    async def test_put_url_accepts_only_announced_bytes_once(self, bench: Bench) -> None:
        url = (await bench.prepare())["upload_url"]
        wrong = PNG[:-1] + b"?"
        for data, length in ((wrong, None), (PNG[:-1], None), (PNG, 5), (PNG[:-1], len(PNG))):
            answer = await bench.put(url, data, length)
            assert (answer.status, set(answer.json)) == (400, {"error"})
            assert bench.gateway.store.contents == {}
        assert (await bench.put(url)).status == 200
        assert (await bench.put(url)).status == 409

    async def test_put_url_is_valid_for_15_minutes(self, bench: Bench) -> None:
        prepared = await bench.prepare()
        bench.ahead = PUT_SECONDS - 1
        assert (await bench.put(prepared["upload_url"], PNG[:-1])).status == 400
        bench.ahead = PUT_SECONDS + 1
        assert (await bench.put(prepared["upload_url"])).status == 404
        forged = prepared["upload_url"][:-2] + "AA"
        assert (await bench.put(forged)).status == 404
        # what one confirms with opens no door for bytes
        base = prepared["upload_url"].rpartition("/")[0]
        assert (await bench.put(f"{base}/{prepared['signed_id']}")).status == 404

    async def test_unknown_foreign_and_expired_signed_ids_are_404(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prepared = await bench.prepare()
        await bench.put(prepared["upload_url"])
        foreign = await bench.confirm(prepared["signed_id"], bench.gateway.other_key)
        unknown = await bench.confirm("A" * 99)
        monkeypatch.setattr(
            "gateway_apiserver.surfaces.temporary_files.puts.TICKET_SECONDS", -TICKET_SECONDS
        )
        late = await bench.confirm(prepared["signed_id"])
        assert {a.status for a in (foreign, unknown, late)} == {404}
        assert foreign.body == unknown.body == late.body

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"byte_size": 0}, "byte_size"),
            ({"byte_size": USER_DATA_BYTES + 1}, "byte_size"),
            ({"byte_size": True}, "byte_size"),
            ({"byte_size": None}, "byte_size"),
            ({"checksum": "AAAA"}, "checksum"),
            ({"checksum": "\u00fc"}, "checksum"),
            ({"checksum": 5}, "checksum"),
            ({"filename": None}, "filename"),
            ({"filename": ""}, "filename"),
            ({"extra": 1}, "extra"),
        ],
    )
    async def test_invalid_preparation_is_400(
        self, bench: Bench, changes: dict[str, Any], field: str
    ) -> None:
        good = {"filename": "a", "byte_size": 5.0, "checksum": base64.b64encode(b"x" * 16).decode()}
        assert (await bench.post(good, PATH + "/prepare")).status == 201
        answer = await bench.post({**good, **changes}, PATH + "/prepare")
        assert (answer.status, set(answer.json["errors"])) == (400, {field})


async def test_unsupported_content_type_is_415(bench: Bench) -> None:
    for path in (PATH, PATH + "/prepare", PATH + "/confirm"):
        assert (await bench.gateway.create({}, path=path, content_type="a/b")).status == 415
