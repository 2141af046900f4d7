"""The media host: signed addresses, ranges, and nothing else."""

from collections.abc import AsyncGenerator

import pytest
from structlog.testing import capture_logs

from gateway_apiserver.media import MediaParts, create_media_app
from gateway_core.files.addresses import MediaItem, MediaSigner, Sealer, TemporaryAddresses
from gateway_core.storage.objects import ObjectMissing, StoreUnavailable
from tests.fakes.objects import FakeObjects
from tests.unit.apiserver.gateway import Answer, call

NOW = 1_800_000_000
CONTENT = bytes(range(256)) * 4000
SIGNER = MediaSigner(b"m" * 32)
ADDRESSES = TemporaryAddresses(Sealer(b"m" * 32))
ITEM = MediaItem("0f0e0d0c-0b0a-4908-8706-050403020100", 0)
PATH = SIGNER.sign(ITEM, "video/mp4", NOW + 60)


async def ask(
    path: str = PATH,
    method: str = "GET",
    now: float = NOW,
    store: FakeObjects | None = None,
    **headers: str,
) -> Answer:
    if store is None:
        store = FakeObjects()
        store.contents[ITEM.key] = CONTENT
    app = create_media_app(MediaParts(store, SIGNER, ADDRESSES), lambda: now)
    sent = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return await call(app, method, path, headers=sent)


async def test_signed_address_serves_content_and_its_headers() -> None:
    answer = await ask()
    assert answer.status == 200
    assert answer.body == CONTENT
    shown = answer.headers
    assert shown["content-type"] == "video/mp4"
    assert shown["content-length"] == str(len(CONTENT))
    assert shown["accept-ranges"] == "bytes"
    assert shown["x-content-type-options"] == "nosniff"
    assert shown["cache-control"].startswith("private")
    assert shown["etag"].startswith('"')
    assert "access-control-allow-origin" not in shown
    assert shown["x-request-id"].startswith("req_")
    head = await ask(method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(CONTENT))
    assert (await ask(if_none_match=shown["etag"])).status == 304
    other = await ask(method="POST")
    assert (other.status, other.headers["allow"]) == (405, "GET, HEAD")
    assert (await ask("/healthz")).json == {"status": "ok"}


async def test_access_log_names_the_uid_of_the_task() -> None:
    with capture_logs() as lines:
        await ask()
    [line] = [line for line in lines if line["event"] == "answered"]
    assert line["task_uid"] == ITEM.task_uid
    assert "task" not in line


async def test_range_and_range_beyond_the_end() -> None:
    answer = await ask(range="bytes=5-9")
    assert (answer.status, answer.body) == (206, CONTENT[5:10])
    assert answer.headers["content-range"] == f"bytes 5-9/{len(CONTENT)}"
    answer = await ask(range=f"bytes={len(CONTENT)}-")
    assert (answer.status, answer.body) == (416, b"")
    assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"


async def test_url_expires() -> None:
    assert (await ask(now=NOW + 59)).status == 200
    assert (await ask(now=NOW + 61)).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/media",
        "/media/0f0e0d0c-0b0a-4908-8706-050403020100/0",
        PATH + "/",
        PATH.replace(
            "0f0e0d0c-0b0a-4908-8706-050403020100", "1f0e0d0c-0b0a-4908-8706-050403020100"
        ),
        PATH.replace("/0/", "/1/"),
        PATH[:-10] + "x" + PATH[-9:],
        "/media/../" + PATH,
        "/healthz/",
        "/metrics",
        "/api/v1/me",
    ],
)
async def test_unsigned_or_changed_path_is_404(path: str) -> None:
    answer = await ask(path)
    assert answer.status == 404
    assert answer.json == {"error": "Not found."}


async def test_url_of_deleted_object_is_404() -> None:
    gone = SIGNER.sign(MediaItem("2f0e0d0c-0b0a-4908-8706-050403020100", 0), "video/mp4", NOW + 60)
    assert (await ask(gone)).status == 404


@pytest.mark.parametrize(("failure", "status"), [(StoreUnavailable, 503), (ObjectMissing, 404)])
async def test_store_failure_after_head_is_reported(failure: type[Exception], status: int) -> None:
    class Failing(FakeObjects):
        async def stream(self, key: str, *_: object, **__: object) -> AsyncGenerator[bytes, None]:
            raise failure(key)
            yield b""

    store = Failing()
    store.contents[ITEM.key] = CONTENT
    assert (await ask(store=store)).status == status


async def test_empty_file_is_served_and_store_outage_is_503() -> None:
    store = FakeObjects()
    store.contents[ITEM.key] = b""
    answer = await ask(store=store)
    assert (answer.status, answer.body) == (200, b"")
    store.away = True
    assert (await ask(store=store)).status == 503
