"""Metadata documents of clients, fetched and kept (contract §10.5)."""

import orjson
import pytest
import structlog

from gateway_core.api.errors import OAuthError
from gateway_core.oauth.clients import FAILURE_SECONDS, STALE_SECONDS, MetadataDocuments
from gateway_core.oauth.fair_cache import FairCache
from tests.fakes.fetching import FakeFetcher

URL = "https://app.example.com/client.json"


class Scene:
    """One document, kept for a minute."""

    def __init__(self):
        self.fetcher = FakeFetcher()
        self.now = 0.0
        self.documents = MetadataDocuments(self.fetcher, lambda: self.now)
        self.admitted = 0
        self.publish("First")

    def publish(self, name):
        self.fetcher.pages[URL] = orjson.dumps(
            {"client_id": URL, "client_name": name, "redirect_uris": ["https://app.example.com/cb"]}
        )

    async def find(self, url=URL, address="192.0.2.1"):
        async def admit():
            self.admitted += 1
            return address

        return (await self.documents.find(url, admit)).name

    async def is_refused(self):
        with pytest.raises(OAuthError) as error:
            await self.find()
        return error.value.code == "invalid_client"


@pytest.fixture
def scene():
    return Scene()


async def test_document_is_fetched_again_when_it_has_expired(scene):
    assert await scene.find() == "First"
    scene.publish("Second")
    scene.now = 59
    assert await scene.find() == "First"
    scene.now = 60
    assert await scene.find() == "Second"
    assert scene.admitted == 2


async def test_expired_document_is_used_for_a_while_when_its_host_is_away(scene):
    await scene.find()
    scene.fetcher.pages[URL] = "could not be reached"
    scene.now = 60 + STALE_SECONDS - 1
    assert await scene.find() == "First"
    assert await scene.find() == "First"
    assert len(scene.fetcher.fetched) == 2
    scene.now += FAILURE_SECONDS
    assert await scene.is_refused()
    scene.publish("Back")
    scene.now += FAILURE_SECONDS
    assert await scene.find() == "Back"


async def test_document_that_its_host_spoils_is_not_used_further(scene):
    await scene.find()
    scene.fetcher.pages[URL] = b"{}"
    scene.now = 60
    assert await scene.is_refused()
    scene.fetcher.pages[URL] = "could not be reached"
    scene.now += FAILURE_SECONDS
    assert await scene.is_refused()


async def test_failure_is_remembered_shortly(scene):
    scene.fetcher.pages[URL] = "could not be reached"
    for _ in range(5):
        assert await scene.is_refused()
    assert (len(scene.fetcher.fetched), scene.admitted) == (1, 1)
    scene.publish("First")
    scene.now += FAILURE_SECONDS
    assert await scene.find() == "First"


def test_holder_that_fills_a_cache_displaces_its_own_values():
    cache = FairCache(4)
    cache.put("a", 1, "ann")
    cache.put("b", 2, "ann")
    for n in range(9):
        cache.put(f"f{n}", n, "flood")
    assert [cache.get(key) for key in ("a", "b", "f7", "f8")] == [1, 2, 7, 8]
    assert len(cache) == 4
    cache.put("f8", 9, "ann")
    cache.put("f9", 9, "flood")
    cache.remove("f9")
    cache.remove("f9")
    assert [cache.get(key) for key in ("b", "f8", "f9")] == [2, 9, None]
    assert len(cache._keys_of) == 2
    cache.remove("f7")
    assert len(cache._keys_of) == 1


async def test_failures_of_one_address_do_not_displace_those_of_others(scene, monkeypatch):
    monkeypatch.setattr("gateway_core.oauth.clients.MOST_DOCUMENTS", 3)
    scene.documents = MetadataDocuments(scene.fetcher, lambda: scene.now)
    scene.fetcher.pages[URL] = "could not be reached"
    assert await scene.is_refused()
    for n in range(9):
        with pytest.raises(OAuthError):
            await scene.find(f"https://app.example.com/{n}", "192.0.2.9")
    assert len(scene.documents._failures) == 3
    assert await scene.is_refused()
    assert scene.fetcher.fetched.count(URL) == 1


async def test_share_of_fetches_is_of_the_address_and_not_of_a_host_it_chooses(scene):
    await scene.find()
    scene.fetcher.pages["https://b.example/c"] = b"{}"
    for url, address in (("https://a.example/c", "192.0.2.1"), ("https://b.example/c", "::1")):
        with pytest.raises(OAuthError):
            await scene.find(url, address)
    assert scene.fetcher.holders == [f"documents for {a}" for a in ("192.0.2.1",) * 2 + ("::1",)]


async def test_reason_of_a_failed_fetch_is_logged_and_not_returned(scene):
    texts = set()
    reasons = ("could not be reached", "leads to an address that is not allowed", "was late")
    with structlog.testing.capture_logs() as logs:
        for n, reason in enumerate(reasons):
            scene.fetcher.pages[f"https://app.example.com/{n}"] = reason
            with pytest.raises(OAuthError) as error:
                await scene.find(f"https://app.example.com/{n}")
            texts.add(error.value.message)
    assert texts == {"The client's metadata document could not be fetched."}
    assert [line["reason"] for line in logs] == [*reasons]
