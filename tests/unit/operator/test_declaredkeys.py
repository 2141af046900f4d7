"""Keys that are declared: made once, found again, rotated, and never put into a foreign Secret."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog

from gateway_core.accounts.declared_keys import PLAINTEXT
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import KEY_LABEL
from gateway_core.api.key import GatewayKey, KeyClass, Secret, digest, mint_key, parse_key
from gateway_core.kube.errors import (
    KubernetesUnavailable,
    RequestForbidden,
    RequestRejected,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_operator.accounts.declaredkeys import LOOK_SECONDS, DeclaredKeys
from gateway_operator.accounts.kinds import Keys
from gateway_operator.accounts.readiness import ReadinessController
from gateway_operator.context import Failpoints
from tests.fakes.clock import START, in_virtual_time
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.secrets import FakeSecrets

NOW = datetime.fromisoformat("2026-11-21T10:00:00Z")
NAME, SECRET = "key-declared", "acme-key"
NEXT_UID = "22222222-2222-4333-8444-555555555555"


class Killed(BaseException):
    """What a failpoint does here."""


class KillingFailpoints(Failpoints):
    """Ends the work at a step, once."""

    def reach(self, name: str) -> None:
        if name in self._left:
            del self._left[name]
            raise Killed


class Scene:
    """One declared key of the account `acme`, and an operator that may be killed."""

    def __init__(self, **spec: Any) -> None:
        self.kube = FakeKubernetes()
        self.secrets = FakeSecrets()
        self.peppers = {1: b"p" * 32}
        self.running: asyncio.Task[None] | None = None
        account = {"displayName": "Acme", "owner": {"name": "A", "email": "a@example.com"}}
        self.kube.put("gatewayaccounts", {"metadata": {"name": "acme"}, "spec": account})
        self.declare(**spec)

    def declare(self, name: str = NAME, **spec: Any) -> None:
        base = {"accountName": "acme", "displayName": name, "secretName": SECRET}
        old: dict[str, Any] = self.kube.find("gatewaykeys", name) or {}
        generation = old.get("metadata", {}).get("generation", 0) + 1
        self.kube.put(
            "gatewaykeys",
            {
                "metadata": {"name": name, "generation": generation},
                "spec": {**base, **old.get("spec", {}), **spec},
                "status": old.get("status", {}),
            },
        )

    async def start(self, failpoint: str = "") -> None:
        """A new process."""
        await self.stop()
        tables: Any = {
            kind: FakeInformer(self.kube, kind.plural, kind.model_validate)
            for kind in (GatewayAccount, GatewayUser, GatewayKey)
        }
        for kind, table in tables.items():
            for obj in self.kube.list_objects(kind.plural):
                table.upsert(obj)
        declared = DeclaredKeys(
            self.secrets, self.peppers, KillingFailpoints(failpoint), self.read_clock
        )
        users, accounts = tables[GatewayUser], tables[GatewayAccount]
        kind = Keys(tables[GatewayKey], accounts, users, declared, self.read_clock)
        controller = ReadinessController(self.kube, (kind,), self.read_clock)
        self.running = asyncio.create_task(controller.run())
        await asyncio.sleep(1)

    async def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)

    def read_clock(self) -> datetime:
        return NOW + timedelta(seconds=asyncio.get_running_loop().time() - START)

    def read(self, name: str = NAME) -> GatewayKey:
        return GatewayKey.model_validate(self.kube.find("gatewaykeys", name))

    @property
    def reason(self) -> str:
        return self.describe_ready()[0]

    def describe_ready(self, name: str = NAME) -> tuple[str, str]:
        ready = (self.read(name).status.conditions or [])[0]
        return ready.reason, ready.message

    def plaintext(self, name: str = SECRET) -> str:
        return self.secrets.stored[name].data[PLAINTEXT].decode()

    def opens(self, plaintext: str) -> bool:
        """Whether the API would let it in."""
        now = self.read_clock()
        return any(
            token.digest == digest(plaintext, self.peppers[token.pepper_version])
            and (
                token.expiration_time is None or datetime.fromisoformat(token.expiration_time) > now
            )
            for token in self.read().status.tokens or ()
        )


@pytest.mark.parametrize("key_class", ["Standard", "Management"])
def test_a_key_is_made_and_written_into_its_secret(key_class: KeyClass) -> None:
    @in_virtual_time
    async def run() -> None:
        scene = Scene(**{"class": key_class})
        await scene.start()
        plaintext = scene.plaintext()
        parsed = parse_key(plaintext)
        assert parsed is not None
        assert parsed.key_class == key_class
        key = scene.read()
        [token] = key.status.tokens or []
        assert (token.id, token.pepper_version) == (parsed.id, 1)
        assert scene.opens(plaintext)
        assert (key.status.rotations, key.status.secret_name) == (0, SECRET)
        assert scene.reason == "Available"
        secret = scene.secrets.stored[SECRET]
        assert secret.labels["modelgateway.dev/account"] == "acme"
        [owner] = secret.owners
        assert (owner["kind"], owner["uid"]) == ("GatewayKey", key.metadata.uid)

    run()


@in_virtual_time
async def test_it_is_made_once_and_found_again_by_the_next_process() -> None:
    scene = Scene()
    await scene.start()
    key, plaintext = scene.read(), scene.plaintext()
    for _ in range(3):
        await scene.start()
        await asyncio.sleep(3 * LOOK_SECONDS)
    assert scene.plaintext() == plaintext
    assert scene.read() == key
    assert scene.secrets.writes == 1


@in_virtual_time
async def test_killed_between_secret_and_status_the_next_takes_the_key_that_is_there() -> None:
    scene = Scene()
    await scene.start("after-key-secret")
    plaintext = scene.plaintext()
    assert scene.read().status.tokens is None
    await scene.start()
    assert scene.plaintext() == plaintext
    assert scene.opens(plaintext)
    assert scene.secrets.writes == 1


@in_virtual_time
async def test_killed_so_in_a_rotation_the_overlap_is_kept_all_the_same() -> None:
    scene = Scene(overlapSeconds=60)
    await scene.start()
    old = scene.plaintext()
    await scene.stop()
    scene.declare(rotations=1)
    await scene.start("after-key-secret")
    new = scene.plaintext()
    assert new != old
    assert not scene.opens(new)
    await scene.start()
    assert scene.plaintext() == new
    assert scene.opens(new)
    assert scene.opens(old)
    await asyncio.sleep(61)
    assert not scene.opens(old)
    assert len(scene.read().status.tokens or []) == 1


@in_virtual_time
async def test_a_rotation_without_overlap_ends_the_old_key_at_once() -> None:
    scene = Scene()
    await scene.start()
    old = scene.plaintext()
    scene.declare(rotations=3)
    await asyncio.sleep(1)
    assert not scene.opens(old)
    assert scene.opens(scene.plaintext())
    assert scene.read().status.rotations == 3
    assert scene.secrets.writes == 2


@in_virtual_time
async def test_two_rotations_within_the_overlap_leave_two_tokens() -> None:
    scene = Scene(overlapSeconds=600)
    await scene.start()
    keys = [scene.plaintext()]
    for number in (1, 2):
        scene.declare(rotations=number)
        await asyncio.sleep(1)
        keys.append(scene.plaintext())
    assert [scene.opens(key) for key in keys] == [False, True, True]


@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut short", "of the other class"])
def test_a_secret_that_is_gone_or_damaged_gets_a_new_key(damage: str) -> None:
    @in_virtual_time
    async def run() -> None:
        scene = Scene()
        await scene.start()
        old = scene.plaintext()
        secret = scene.secrets.stored.pop(SECRET)
        contents: dict[str, dict[str, bytes]] = {
            "emptied": {},
            "cut short": {PLAINTEXT: old[:-1].encode()},
            "of the other class": {PLAINTEXT: mint_key("Management").plaintext.encode()},
        }
        if damage in contents:
            scene.secrets.put(replace(secret, data=contents[damage]))
        await asyncio.sleep(LOOK_SECONDS + 1)
        assert scene.plaintext() != old
        assert scene.opens(scene.plaintext())
        assert not scene.opens(old)

    run()


@in_virtual_time
async def test_what_else_is_in_the_secret_stays() -> None:
    scene = Scene()
    await scene.start()
    secret = scene.secrets.stored[SECRET]
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": NEXT_UID}
    more = {"data": {**secret.data, "url": b"u"}, "labels": {**secret.labels, "team": "a"}}
    scene.secrets.put(replace(secret, **more, owners=(*secret.owners, other)))  # type: ignore[arg-type]
    scene.declare(rotations=1)
    await asyncio.sleep(1)
    changed = scene.secrets.stored[SECRET]
    assert changed.data["url"] == b"u"
    assert changed.labels["team"] == "a"
    assert {owner["kind"] for owner in changed.owners} == {"ConfigMap", "GatewayKey"}


@pytest.mark.parametrize("labels", [{}, {KEY_LABEL: "key-of-another"}])
def test_a_secret_that_is_not_ours_is_never_written(labels: dict[str, str]) -> None:
    @in_virtual_time
    async def run() -> None:
        scene = Scene()
        scene.secrets.put(Secret(SECRET, {PLAINTEXT: b"precious"}, labels))
        await scene.start()
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert scene.secrets.writes == 0
        assert scene.read().status.tokens is None
        reason, message = scene.describe_ready()
        assert reason == "SecretNotWritable"
        assert SECRET in message
        assert "precious" not in message
        del scene.secrets.stored[SECRET]
        await asyncio.sleep(LOOK_SECONDS + 1)
        assert scene.reason == "Available"
        assert scene.opens(scene.plaintext())

    run()


@in_virtual_time
async def test_of_two_keys_for_one_secret_the_first_has_it() -> None:
    scene = Scene()
    await scene.start()
    plaintext = scene.plaintext()
    scene.declare("key-second")
    await asyncio.sleep(1)
    assert scene.describe_ready("key-second")[0] == "SecretNotWritable"
    assert scene.plaintext() == plaintext


@in_virtual_time
async def test_a_key_made_anew_under_its_name_is_another_key() -> None:
    """Where nothing collects what a deleted key owned, its plaintext opens nothing again."""
    scene = Scene()
    await scene.start()
    old = scene.plaintext()
    scene.kube.remove("gatewaykeys", NAME)
    scene.declare()
    await asyncio.sleep(1)
    assert scene.plaintext() != old
    assert scene.opens(scene.plaintext())
    [owner] = scene.secrets.stored[SECRET].owners
    assert owner["uid"] == scene.read().metadata.uid


@in_virtual_time
async def test_who_knows_an_older_version_of_the_key_takes_no_newer_one_away() -> None:
    """Two operators that own shard 0 for a moment, of which one has not heard of the rotation."""
    scene = Scene()
    await scene.start()
    old = scene.plaintext()
    secret = scene.secrets.stored[SECRET]
    newer = mint_key().plaintext
    annotations = {"modelgateway.dev/rotations": "1"}
    written = replace(secret, data={PLAINTEXT: newer.encode()}, annotations=annotations)
    scene.secrets.put(written)
    await asyncio.sleep(3 * LOOK_SECONDS)
    assert scene.plaintext() == newer
    assert scene.opens(old)
    scene.declare(rotations=1)
    await asyncio.sleep(1)
    assert scene.plaintext() == newer
    assert scene.opens(newer)
    assert not scene.opens(old)


@pytest.mark.parametrize("rotations", ["0", "1"])
def test_a_key_that_was_rotated_out_and_put_back_is_none(rotations: str) -> None:
    @in_virtual_time
    async def run() -> None:
        scene = Scene(overlapSeconds=600)
        await scene.start()
        before = scene.secrets.stored[SECRET]
        scene.declare(rotations=1)
        await asyncio.sleep(1)
        annotations = {"modelgateway.dev/rotations": rotations}
        version = scene.secrets.stored[SECRET].version
        scene.secrets.put(replace(before, annotations=annotations, version=version))
        await asyncio.sleep(LOOK_SECONDS + 1)
        assert scene.secrets.stored[SECRET].data != before.data
        current = [t for t in scene.read().status.tokens or () if t.expiration_time is None]
        assert [token.id for token in current] == [scene.plaintext()[3:11]]

    run()


@in_virtual_time
async def test_another_secret_name_takes_the_key_along() -> None:
    scene = Scene()
    await scene.start()
    plaintext, tokens = scene.plaintext(), scene.read().status.tokens
    scene.declare(secretName="elsewhere")
    await asyncio.sleep(1)
    assert scene.plaintext("elsewhere") == plaintext
    assert scene.read().status.tokens == tokens
    assert scene.read().status.secret_name == "elsewhere"


@in_virtual_time
async def test_another_secret_name_and_a_rotation_make_a_new_key_there() -> None:
    scene = Scene()
    await scene.start()
    old = scene.plaintext()
    scene.declare(secretName="elsewhere", rotations=1)
    await asyncio.sleep(1)
    assert scene.plaintext("elsewhere") != old
    assert scene.opens(scene.plaintext("elsewhere"))
    assert not scene.opens(old)


@in_virtual_time
async def test_a_revoked_key_has_no_token_and_is_made_no_more() -> None:
    scene = Scene()
    await scene.start()
    scene.declare(revoked=True)
    await asyncio.sleep(1)
    assert scene.read().status.tokens is None
    assert scene.reason == "Revoked"
    del scene.secrets.stored[SECRET]
    await asyncio.sleep(3 * LOOK_SECONDS)
    assert SECRET not in scene.secrets.stored


@in_virtual_time
async def test_a_disabled_key_keeps_its_token() -> None:
    scene = Scene(disabled=True)
    await scene.start()
    assert scene.reason == "Disabled"
    assert scene.opens(scene.plaintext())


@in_virtual_time
async def test_a_key_without_an_account_is_made_and_not_ready() -> None:
    scene = Scene(accountName="later")
    await scene.start()
    assert scene.reason == "AccountNotFound"
    assert scene.opens(scene.plaintext())


@in_virtual_time
async def test_a_new_pepper_is_for_new_keys_and_a_lost_one_takes_none_away() -> None:
    scene = Scene()
    await scene.start()
    plaintext = scene.plaintext()
    scene.peppers[2] = b"q" * 32
    await scene.start()
    await asyncio.sleep(2 * LOOK_SECONDS)
    [token] = scene.read().status.tokens or []
    assert token.pepper_version == 1
    del scene.peppers[1]
    await scene.start()
    await asyncio.sleep(2 * LOOK_SECONDS)
    [token] = scene.read().status.tokens or []
    assert token.pepper_version == 2
    assert scene.plaintext() == plaintext
    assert scene.opens(plaintext)


class TestTrouble:
    @in_virtual_time
    async def test_rights_that_are_lacking_are_told(self) -> None:
        scene = Scene()
        scene.secrets.refusal = RequestForbidden("403 forbidden")
        await scene.start()
        reason, message = scene.describe_ready()
        assert reason == "SecretForbidden"
        assert message.startswith(f"RBAC lacks get, create or patch of Secret {SECRET}: name it in")
        assert "operator.keySecretNames" in message
        scene.secrets.refusal = None
        await asyncio.sleep(LOOK_SECONDS + 1)
        assert scene.reason == "Available"

    @in_virtual_time
    async def test_an_immutable_secret_is_told(self) -> None:
        scene = Scene()
        scene.secrets.refusal = RequestRejected("422 immutable")
        await scene.start()
        reason, message = scene.describe_ready()
        assert reason == "SecretNotWritable"
        assert message == f"Secret {SECRET} is immutable; delete it"

    @in_virtual_time
    async def test_an_api_that_is_away_leaves_the_key_pending(self) -> None:
        scene = Scene()
        scene.secrets.refusal = KubernetesUnavailable("away")
        await scene.start()
        assert scene.reason == "KeyPending"
        scene.secrets.refusal = None
        await asyncio.sleep(10)
        assert scene.reason == "Available"

    @in_virtual_time
    async def test_and_one_that_opens_as_it_is(self) -> None:
        scene = Scene()
        await scene.start()
        scene.secrets.refusal = KubernetesUnavailable("away")
        await asyncio.sleep(5 * LOOK_SECONDS)
        assert scene.reason == "Available"
        assert scene.opens(scene.plaintext())

    @in_virtual_time
    async def test_a_write_that_was_not_acknowledged_makes_no_second_key(self) -> None:
        scene = Scene()
        scene.secrets.faults.append(Fault(WriteOutcomeUnknown("lost"), applied=True))
        await scene.start()
        plaintext = scene.plaintext()
        await asyncio.sleep(10)
        assert scene.secrets.writes == 1
        assert scene.reason == "Available"
        assert scene.opens(plaintext)

    @in_virtual_time
    async def test_a_secret_that_another_replica_has_made_meanwhile_counts(self) -> None:
        scene = Scene()
        scene.secrets.faults.append(Fault(WriteConflict("faster")))
        await scene.start()
        assert scene.reason == "Available"
        assert scene.opens(scene.plaintext())

    @in_virtual_time
    async def test_a_status_that_was_not_written_is_written_later(self) -> None:
        scene = Scene()
        scene.kube.order_faults(
            "patch_status", Fault(WriteConflict("x")), Fault(RequestRejected("y"))
        )
        await scene.start()
        await asyncio.sleep(5)
        assert scene.opens(scene.plaintext())
        assert scene.secrets.writes == 1

    @in_virtual_time
    async def test_no_plaintext_is_logged_or_recorded(self) -> None:
        scene = Scene(overlapSeconds=10)
        with structlog.testing.capture_logs() as logs:
            await scene.start()
            first = scene.plaintext()
            scene.declare(rotations=1)
            await asyncio.sleep(1)
        written = repr(logs) + repr(scene.kube.list_objects("gatewaykeys"))
        assert logs
        for plaintext in (first, scene.plaintext()):
            assert plaintext not in written
            assert plaintext[12:44] not in written


@in_virtual_time
async def test_very_many_keys_are_looked_at_less_often() -> None:
    scene = Scene()
    for number in range(600):
        scene.declare(f"key-{number}", secretName=f"secret-{number}")
    await scene.start()
    await asyncio.sleep(20)
    await scene.start()
    before = scene.secrets.reads
    await asyncio.sleep(60)
    assert scene.secrets.reads - before <= 660
