"""Registration of clients: their names, and room for unused ones (contract §10.5)."""

import time
from datetime import UTC, datetime

import pytest

from gateway_core.api.errors import OAuthError, TooManyCalls
from gateway_core.api.ids import IdMint
from gateway_core.api.times import format_time
from gateway_core.oauth.records import project_client
from gateway_core.oauth.registration import Registrar, is_plain_name, mark_authorized, read_metadata
from gateway_core.oauth.room import ClientIndex
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes

LATIN = ["Claude", "Ann's editor", "Müller & Söhne", "Café", "Ti\u1ebfng", "🚀 go"]
OTHERS = ["日本語クライアント", "נתן"]
HIDING = {
    "blank": ["", " ", "\u3164", "\u2800\u2800"],
    "direction": ["a\u202eb", "a\u2066b", "a\u200fb"],
    "invisible": ["a\u200bb", "a\u00adb", "a\ufeffb", "a\u115fb", "a\uffa0b", "a\u034fb"],
    "variation or tag": ["a\ufe0fb", "a\U000e0101b", "a\U000e0041b"],
    "line or control": ["a\u2028b", "a\x7fb"],
    "stacked marks": ["e" + "\u0301" * 4],
}


@pytest.mark.parametrize("name", LATIN + OTHERS)
def test_names_of_all_languages_are_accepted(name):
    assert is_plain_name(name)


@pytest.mark.parametrize("name", [name for names in HIDING.values() for name in names])
def test_names_with_hidden_characters_are_refused(name):
    assert not is_plain_name(name)
    with pytest.raises(OAuthError) as error:
        read_metadata({"redirect_uris": ["https://a.example/"], "client_name": name})
    assert error.value.code == "invalid_client_metadata"


class Scene:
    """A registrar with room for three unused clients; `age` is that of the next one."""

    def __init__(self):
        self.age = 0.0
        self.kube = FakeKubernetes(clock=self.date)
        self.table = FakeInformer(self.kube, "gatewayoauthclients", project_client)
        self.registrar = Registrar(
            self.kube,
            self.table,
            ClientIndex(self.table),
            IdMint(b"i" * 32),
            {1: b"p" * 32},
            most_unused=3,
        )

    def date(self):
        return format_time(datetime.fromtimestamp(time.time() - self.age, UTC))

    async def register(self, age=0.0):
        self.age = age
        response = await self.registrar.register({"redirect_uris": ["https://a.example/"]})
        return response["client_id"].replace("_", "-", 1)

    @property
    def names(self):
        found = self.kube.list_objects("gatewayoauthclients")
        return {obj["metadata"]["name"] for obj in found}


async def test_oldest_unused_client_makes_room_for_a_new_one():
    scene = Scene()
    newer, oldest, new = [await scene.register(age) for age in (2000, 3000, 10)]
    last = await scene.register()
    assert scene.names == {newer, new, last}
    # as long as the watch is behind, the next one is chosen
    scene.table.cut = True
    assert oldest not in scene.names
    latest = await scene.register()
    assert scene.names == {new, last, latest}


async def test_new_clients_are_not_displaced_by_a_flood():
    scene = Scene()
    names = {await scene.register(age) for age in (0, 500, 890)}
    with pytest.raises(TooManyCalls) as error:
        await scene.register()
    assert 0 < error.value.retry_after <= 900
    assert scene.names == names


async def test_client_that_is_approved_meanwhile_is_not_deleted():
    scene = Scene()
    approved, second, third = [await scene.register(age) for age in (3000, 2000, 2000)]
    scene.table.cut = True
    await mark_authorized(scene.kube, scene.table.get(approved), "ann", time.time())
    fourth = await scene.register()
    assert scene.names == {approved, second, third, fourth}


async def test_approval_between_read_and_deletion_keeps_the_client(monkeypatch):
    scene = Scene()
    names = {await scene.register(age) for age in (3000, 10, 10)}
    [oldest] = [name for name, _ in scene.registrar._index.list_unused(time.time() - 2000, 1)]
    delete = scene.kube.delete

    async def approve_first(plural, name, **given):
        await mark_authorized(scene.kube, scene.table.get(name), "ann", time.time())
        return await delete(plural, name, **given)

    monkeypatch.setattr(scene.kube, "delete", approve_first)
    with pytest.raises(TooManyCalls):
        await scene.register()
    assert scene.names == names
    assert oldest in scene.names
