"""The promises of `Secrets`, kept by the fake and by the adapter on a real API server."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway_core.api.key import Secret
from gateway_core.kube.errors import AlreadyExists, ObjectNotFound, WriteConflict
from gateway_core.kube.secrets import SecretClient
from tests.fakes.secrets import FakeSecrets
from tests.servers.control_plane import ControlPlane

OWNER = {
    "apiVersion": "modelgateway.dev/v1alpha1",
    "kind": "GatewayKey",
    "name": "key-a",
    "uid": "11111111-2222-4333-8444-555555555555",
}


@pytest.fixture(params=["fake", "kube"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SecretClient]:
    if request.param == "fake":
        yield FakeSecrets()
        return
    control_plane: ControlPlane = request.getfixturevalue("control_plane")
    async with control_plane.kube() as kube:
        yield SecretClient(kube)


def make_secret() -> Secret:
    return Secret(
        name=f"secret-{secrets.token_hex(4)}",
        data={"api-key": b"\xff one"},
        labels={"modelgateway.dev/key": "key-a"},
        annotations={"modelgateway.dev/rotations": "0"},
        owners=(OWNER,),
    )


async def read(store: SecretClient, name: str) -> Secret:
    found = await store.find(name)
    assert found is not None
    return found


async def test_created_secret_is_found_with_its_version(store: SecretClient) -> None:
    secret = make_secret()
    assert await store.find(secret.name) is None
    await store.write(secret)
    found = await read(store, secret.name)
    assert found.version
    assert replace(found, version="") == secret


async def test_only_one_of_two_concurrent_creates_succeeds(store: SecretClient) -> None:
    secret = make_secret()
    await store.write(secret)
    with pytest.raises(AlreadyExists):
        await store.write(replace(secret, data={"api-key": b"two"}))
    assert (await read(store, secret.name)).data == {"api-key": b"\xff one"}


async def test_change_keeps_what_it_does_not_name(store: SecretClient) -> None:
    secret = replace(make_secret(), data={"api-key": b"one", "other": b"stays"})
    await store.write(secret)
    found = await read(store, secret.name)
    await store.write(replace(found, data={"api-key": b"two"}, labels={"a": "b"}, owners=()))
    changed = await read(store, secret.name)
    assert changed.data == {"api-key": b"two", "other": b"stays"}
    assert changed.labels == {**secret.labels, "a": "b"}
    assert changed.annotations == secret.annotations
    assert changed.owners == ()
    assert changed.version != found.version


async def test_change_of_what_has_changed_since_is_refused(store: SecretClient) -> None:
    await store.write(secret := make_secret())
    found = await read(store, secret.name)
    await store.write(replace(found, data={"api-key": b"two"}))
    with pytest.raises(WriteConflict):
        await store.write(replace(found, data={"api-key": b"three"}))
    with pytest.raises(ObjectNotFound):
        await store.write(replace(found, name=secret.name + "-gone"))


def test_data_is_not_in_what_is_printed() -> None:
    assert "one" not in repr(make_secret())
