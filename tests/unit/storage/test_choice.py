"""Which store the settings choose, and what is said of those that make no sense."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway_core.storage import choice
from gateway_core.storage.choice import open_store
from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import StoreSettings, StoreUnavailable
from gateway_core.storage.s3 import store as store_module
from gateway_core.storage.s3.client import build_client
from gateway_core.storage.s3.store import S3Store

S3 = {"store": "s3", "store_bucket": "objects"}


async def test_a_directory_is_the_default(tmp_path: Path) -> None:
    async with open_store(StoreSettings(store_dir=tmp_path)) as store:
        assert isinstance(store, DirectoryStore)
        await store.put("a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


async def test_a_bucket_that_is_away_keeps_nobody_from_starting(
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
        ({**S3, "store_endpoint": "http://key:hidden@s3.example.com"}, "holds no credentials"),
        ({**S3, "store_endpoint": "http://s3.example.com/?key=hidden"}, "holds no credentials"),
        ({**S3, "store_addressing": "host"}, "'auto', 'path' or 'virtual'"),
    ],
)
def test_contradictory_settings_are_refused(values: dict[str, str], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StoreSettings(**values)
    (problem,) = caught.value.errors()
    assert text in problem["msg"]
    assert "hidden" not in problem["msg"]


@pytest.mark.parametrize("module", ["gateway_operator", "gateway_apiserver"])
def test_a_process_says_what_is_missing(module: str, tmp_path: Path) -> None:
    endpoint = "http://key:hidden@s3.example.com"
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")},
        "GATEWAY_SECRETS_DIR": str(tmp_path),
        "GATEWAY_MEDIA_URL": "http://127.0.0.1",
        "GATEWAY_STORE": "s3",
        "GATEWAY_STORE_BUCKET": "objects",
        "GATEWAY_STORE_ENDPOINT": endpoint,
    }
    arguments = ["media"] if module == "gateway_apiserver" else []
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 2
    assert "GATEWAY_STORE_ENDPOINT holds no credentials" in run.stderr
    assert "hidden" not in run.stderr


@pytest.mark.parametrize(
    ("endpoint", "addressing", "url"),
    [
        (None, "auto", "https://objects.s3.eu-central-1.amazonaws.com/a/b"),
        (None, "path", "https://s3.eu-central-1.amazonaws.com/objects/a/b"),
        ("https://s3.example.com:9000", "auto", "https://s3.example.com:9000/objects/a/b"),
        ("https://s3.example.com:9000", "path", "https://s3.example.com:9000/objects/a/b"),
        ("https://s3.example.com:9000", "virtual", "https://objects.s3.example.com:9000/a/b"),
    ],
)
def test_a_bucket_is_addressed_as_asked_for(endpoint, addressing, url, monkeypatch) -> None:
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


def test_the_config_is_for_any_compatible_store() -> None:
    config = build_client("http://127.0.0.1:1", "us-east-1", "auto").meta.config
    assert config.request_checksum_calculation == "when_required"
    assert config.response_checksum_validation == "when_required"
    assert (config.connect_timeout, config.read_timeout) == (3, 30)
    assert config.max_pool_connections >= 2 * store_module.THREADS
    assert config.retries == {"mode": "standard", "total_max_attempts": 3}


async def test_leftovers_are_looked_for_again_and_again_wherever_parts_go(
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
