"""Metadata documents of clients, fetched and kept (contract §10.5)."""

import orjson
import pytest

from gateway_core.api.errors import OAuthError
from gateway_core.oauth.clients import FAILURE_SECONDS, STALE_SECONDS, MetadataDocuments
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

    async def find(self):
        async def admit():
            self.admitted += 1

        return (await self.documents.find(URL, admit)).name

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


async def test_memory_of_documents_and_failures_is_bounded(scene, monkeypatch):
    monkeypatch.setattr("gateway_core.oauth.clients.MOST_DOCUMENTS", 3)

    async def admit():
        pass

    for n in range(9):
        with pytest.raises(OAuthError):
            await scene.documents.find(f"https://app.example.com/{n}", admit)
    assert len(scene.documents._failures) == 3
