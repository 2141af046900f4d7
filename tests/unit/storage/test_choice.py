"""The store that the settings choose, and refusals of contradictory settings."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import ValidationError

import gateway_apiserver.__main__
import gateway_operator.__main__
from gateway_core.storage import choice
from gateway_core.storage.choice import open_store
from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import StoreSettings, StoreUnavailable
from gateway_core.storage.s3 import store as store_module
from gateway_core.storage.s3.client import build_client
from gateway_core.storage.s3.store import S3Store

S3 = {"store": "s3", "store_bucket": "objects"}


async def test_directory_is_the_default_store(tmp_path: Path) -> None:
    async with open_store(StoreSettings(store_dir=tmp_path)) as store:
        assert isinstance(store, DirectoryStore)
        await store.put("a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


async def test_process_starts_while_the_bucket_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    settings = StoreSettings(
        **S3, store_endpoint="http://127.0.0.1:1", store_region="us-east-1", store_prefix="a/b"
    )
    async with open_store(settings) as store:
        assert isinstance(store, S3Store)
        with pytest.raises(StoreUnavailable, match=r"bucket objects: .* cannot be reached"):
            await store.get("a")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "GATEWAY_STORE_DIR has to name"),
        ({"store": "s3"}, "GATEWAY_STORE_BUCKET has to name"),
        ({"store": "gcs"}, "'directory' or 's3'"),
        ({**S3, "store_prefix": "/a"}, "GATEWAY_STORE_PREFIX"),
        ({**S3, "store_prefix": "a/"}, "GATEWAY_STORE_PREFIX"),
        ({**S3, "store_prefix": "a/../b"}, "GATEWAY_STORE_PREFIX"),
        ({**S3, "store_endpoint": "s3.example.com"}, "URL with http or https"),
        ({**S3, "store_endpoint": "ftp://s3.example.com"}, "URL with http or https"),
        ({**S3, "store_endpoint": "https:///objects"}, "URL with http or https"),
        ({**S3, "store_endpoint": "http://key:hidden@s3.example.com"}, "holds no credentials"),
        ({**S3, "store_endpoint": "http://s3.example.com/?key=hidden"}, "holds no credentials"),
        ({**S3, "store_endpoint": "http://s3.example.com/#hidden"}, "holds no credentials"),
        ({**S3, "store_addressing": "host"}, "'auto', 'path' or 'virtual'"),
    ],
)
def test_contradictory_settings_are_refused(values: dict[str, str], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StoreSettings(**values)
    (problem,) = caught.value.errors()
    assert text in problem["msg"]
    assert "hidden" not in problem["msg"]


@pytest.mark.parametrize(
    ("module", "arguments"),
    [(gateway_operator.__main__, []), (gateway_apiserver.__main__, ["media"])],
)
def test_process_names_invalid_settings_without_their_secrets(
    module: ModuleType,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {
        "SECRETS_DIR": str(tmp_path),
        "MEDIA_URL": "http://127.0.0.1",
        "STORE": "s3",
        "STORE_BUCKET": "objects",
        "STORE_ENDPOINT": "http://key:hidden@s3.example.com",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"GATEWAY_{name}", value)
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
    assert module.main() == 2
    told = capsys.readouterr().err
    assert "GATEWAY_STORE_ENDPOINT holds no credentials" in told
    assert "hidden" not in told


@pytest.mark.parametrize(
    ("endpoint", "addressing", "url"),
    [
        (None, "auto", "https://objects.s3.eu-central-1.amazonaws.com/a/b"),
        ("https://s3.example.com:9000", "auto", "https://s3.example.com:9000/objects/a/b"),
        ("https://s3.example.com:9000", "virtual", "https://objects.s3.example.com:9000/a/b"),
    ],
)
def test_bucket_is_addressed_by_host_or_path(endpoint, addressing, url, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    client = build_client(endpoint, "eu-central-1", addressing)

    class Sent(Exception):
        """In place of the network."""

    def stop(request, **_: object) -> None:
        raise Sent(request.url)

    client.meta.events.register("before-send.s3", stop)
    with pytest.raises(Sent) as caught:
        client.get_object(Bucket="objects", Key="a/b")
    assert str(caught.value) == url


def test_client_settings_suit_any_compatible_store() -> None:
    config = build_client("http://127.0.0.1:1", "us-east-1", "auto").meta.config
    assert config.request_checksum_calculation == "when_required"
    assert config.response_checksum_validation == "when_required"
    assert (config.connect_timeout, config.read_timeout) == (3, 30)
    assert config.max_pool_connections >= 2 * store_module.THREADS
    assert config.retries == {"mode": "standard", "total_max_attempts": 3}


async def test_leftovers_of_every_folder_are_swept_repeatedly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept: list[str] = []
    often = asyncio.Event()

    async def remove(_: S3Store, folder: str) -> None:
        swept.append(folder)
        if len(swept) == 11:
            often.set()

    monkeypatch.setattr(choice, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(S3Store, "remove_leftovers", remove)
    settings = StoreSettings(
        store="s3",
        store_bucket="b",
        store_endpoint="http://127.0.0.1:1",
        store_region="us-east-1",
    )
    async with open_store(settings):
        await asyncio.wait_for(often.wait(), 10)
    folders = ["media/", "files/", "uploads/", "batches/", "temporary/"]
    assert swept[:11] == [*folders, *folders, "media/"]
