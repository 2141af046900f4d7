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
from gateway_operator.events import Events
from tests.fakes.clock import START, in_virtual_time
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.secrets import FakeSecrets
from tests.unit.operator.declarations import Declarations

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


class Simulation(Declarations):
    """One declared key of the account `acme`, and an operator that may be killed."""

    def __init__(self, **spec: Any) -> None:
        self.kube = FakeKubernetes()
        self.secrets = FakeSecrets()
        self.peppers = {1: b"p" * 32}
        self.running: asyncio.Task[None] | None = None
        self.put_account("acme")
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
        events = Events(self.kube, self.kube.post_event)
        controller = ReadinessController(self.kube, (kind,), events, self.read_clock)
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
        now = self.read_clock()
        return any(
            token.digest == digest(plaintext, self.peppers[token.pepper_version])
            and (
                token.expiration_time is None or datetime.fromisoformat(token.expiration_time) > now
            )
            for token in self.read().status.tokens or ()
        )


@pytest.fixture
def sim() -> Simulation:
    return Simulation()


@pytest.mark.parametrize("key_class", ["Standard", "Management"])
@in_virtual_time
async def test_key_is_made_and_written_into_its_secret(key_class: KeyClass) -> None:
    sim = Simulation(**{"class": key_class})
    await sim.start()
    plaintext = sim.plaintext()
    parsed = parse_key(plaintext)
    assert parsed is not None
    assert parsed.key_class == key_class
    key = sim.read()
    [token] = key.status.tokens or []
    assert (token.id, token.pepper_version) == (parsed.id, 1)
    assert sim.opens(plaintext)
    assert (key.status.rotations, key.status.secret_name) == (0, SECRET)
    assert sim.reason == "Available"
    secret = sim.secrets.stored[SECRET]
    assert secret.labels["modelgateway.dev/account"] == "acme"
    [owner] = secret.owners
    assert (owner["kind"], owner["uid"]) == ("GatewayKey", key.metadata.uid)


@in_virtual_time
async def test_key_is_minted_once_and_found_by_next_process(sim: Simulation) -> None:
    await sim.start()
    key, plaintext = sim.read(), sim.plaintext()
    for _ in range(3):
        await sim.start()
        await asyncio.sleep(3 * LOOK_SECONDS)
    assert sim.plaintext() == plaintext
    assert sim.read() == key
    assert sim.secrets.writes == 1


@in_virtual_time
async def test_kill_between_secret_and_status_keeps_key_and_overlap() -> None:
    sim = Simulation(overlapSeconds=60)
    await sim.start("after-key-secret")
    old = sim.plaintext()
    assert sim.read().status.tokens is None
    await sim.start()
    assert sim.plaintext() == old
    assert sim.opens(old)
    assert sim.secrets.writes == 1
    await sim.stop()
    sim.declare(rotations=1)
    await sim.start("after-key-secret")
    new = sim.plaintext()
    assert new != old
    assert not sim.opens(new)
    await sim.start()
    assert sim.plaintext() == new
    assert sim.opens(new)
    assert sim.opens(old)
    await asyncio.sleep(61)
    assert not sim.opens(old)
    assert len(sim.read().status.tokens or []) == 1


@in_virtual_time
async def test_rotation_without_overlap_ends_the_old_key_at_once(sim: Simulation) -> None:
    await sim.start()
    old = sim.plaintext()
    sim.declare(rotations=3)
    await asyncio.sleep(1)
    assert not sim.opens(old)
    assert sim.opens(sim.plaintext())
    assert sim.read().status.rotations == 3
    assert sim.secrets.writes == 2


@in_virtual_time
async def test_two_rotations_within_the_overlap_leave_two_tokens() -> None:
    sim = Simulation(overlapSeconds=600)
    await sim.start()
    keys = [sim.plaintext()]
    for number in (1, 2):
        sim.declare(rotations=number)
        await asyncio.sleep(1)
        keys.append(sim.plaintext())
    assert [sim.opens(key) for key in keys] == [False, True, True]


@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut short", "of the other class"])
@in_virtual_time
async def test_missing_or_damaged_secret_gets_a_new_key(sim: Simulation, damage: str) -> None:
    await sim.start()
    old = sim.plaintext()
    secret = sim.secrets.stored.pop(SECRET)
    contents: dict[str, dict[str, bytes]] = {
        "emptied": {},
        "cut short": {PLAINTEXT: old[:-1].encode()},
        "of the other class": {PLAINTEXT: mint_key("Management").plaintext.encode()},
    }
    if damage in contents:
        sim.secrets.put(replace(secret, data=contents[damage]))
    await asyncio.sleep(LOOK_SECONDS + 1)
    assert sim.plaintext() != old
    assert sim.opens(sim.plaintext())
    assert not sim.opens(old)


@in_virtual_time
async def test_rotation_keeps_other_entries_of_the_secret(sim: Simulation) -> None:
    await sim.start()
    secret = sim.secrets.stored[SECRET]
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": NEXT_UID}
    more = {"data": {**secret.data, "url": b"u"}, "labels": {**secret.labels, "team": "a"}}
    sim.secrets.put(replace(secret, **more, owners=(*secret.owners, other)))  # type: ignore[arg-type]
    sim.declare(rotations=1)
    await asyncio.sleep(1)
    changed = sim.secrets.stored[SECRET]
    assert changed.data["url"] == b"u"
    assert changed.labels["team"] == "a"
    assert {owner["kind"] for owner in changed.owners} == {"ConfigMap", "GatewayKey"}


@pytest.mark.parametrize("labels", [{}, {KEY_LABEL: "key-of-another"}])
@in_virtual_time
async def test_foreign_secret_is_never_written(sim: Simulation, labels: dict[str, str]) -> None:
    sim.secrets.put(Secret(SECRET, {PLAINTEXT: b"precious"}, labels))
    await sim.start()
    await asyncio.sleep(3 * LOOK_SECONDS)
    assert sim.secrets.writes == 0
    assert sim.read().status.tokens is None
    reason, message = sim.describe_ready()
    assert reason == "SecretNotWritable"
    assert SECRET in message
    assert "precious" not in message
    del sim.secrets.stored[SECRET]
    await asyncio.sleep(LOOK_SECONDS + 1)
    assert sim.reason == "Available"
    assert sim.opens(sim.plaintext())


@in_virtual_time
async def test_secret_named_by_two_keys_is_of_the_first(sim: Simulation) -> None:
    await sim.start()
    plaintext = sim.plaintext()
    sim.declare("key-second")
    await asyncio.sleep(1)
    assert sim.describe_ready("key-second")[0] == "SecretNotWritable"
    assert sim.plaintext() == plaintext


@in_virtual_time
async def test_recreated_key_object_gets_a_new_key(sim: Simulation) -> None:
    """Where nothing collects what a deleted key owned, its plaintext opens nothing again."""
    await sim.start()
    old = sim.plaintext()
    sim.kube.remove("gatewaykeys", NAME)
    sim.declare()
    await asyncio.sleep(1)
    assert sim.plaintext() != old
    assert sim.opens(sim.plaintext())
    [owner] = sim.secrets.stored[SECRET].owners
    assert owner["uid"] == sim.read().metadata.uid


@in_virtual_time
async def test_stale_process_does_not_replace_newer_key(sim: Simulation) -> None:
    """Two operators that own shard 0 for a moment, of which one has not heard of the rotation."""
    await sim.start()
    old = sim.plaintext()
    secret = sim.secrets.stored[SECRET]
    newer = mint_key().plaintext
    annotations = {"modelgateway.dev/rotations": "1"}
    written = replace(secret, data={PLAINTEXT: newer.encode()}, annotations=annotations)
    sim.secrets.put(written)
    await asyncio.sleep(3 * LOOK_SECONDS)
    assert sim.plaintext() == newer
    assert sim.opens(old)
    sim.declare(rotations=1)
    await asyncio.sleep(1)
    assert sim.plaintext() == newer
    assert sim.opens(newer)
    assert not sim.opens(old)


@pytest.mark.parametrize("rotations", ["0", "1"])
@in_virtual_time
async def test_rotated_out_key_put_back_is_replaced(rotations: str) -> None:
    sim = Simulation(overlapSeconds=600)
    await sim.start()
    before = sim.secrets.stored[SECRET]
    sim.declare(rotations=1)
    await asyncio.sleep(1)
    annotations = {"modelgateway.dev/rotations": rotations}
    version = sim.secrets.stored[SECRET].version
    sim.secrets.put(replace(before, annotations=annotations, version=version))
    await asyncio.sleep(LOOK_SECONDS + 1)
    assert sim.secrets.stored[SECRET].data != before.data
    current = [t for t in sim.read().status.tokens or () if t.expiration_time is None]
    assert [token.id for token in current] == [sim.plaintext()[3:11]]


@in_virtual_time
async def test_changed_secret_name_moves_the_key(sim: Simulation) -> None:
    await sim.start()
    plaintext, tokens = sim.plaintext(), sim.read().status.tokens
    sim.declare(secretName="elsewhere")
    await asyncio.sleep(1)
    assert sim.plaintext("elsewhere") == plaintext
    assert sim.read().status.tokens == tokens
    assert sim.read().status.secret_name == "elsewhere"


@in_virtual_time
async def test_changed_secret_name_with_rotation_mints_a_key(sim: Simulation) -> None:
    await sim.start()
    old = sim.plaintext()
    sim.declare(secretName="elsewhere", rotations=1)
    await asyncio.sleep(1)
    assert sim.plaintext("elsewhere") != old
    assert sim.opens(sim.plaintext("elsewhere"))
    assert not sim.opens(old)


@in_virtual_time
async def test_revoked_key_loses_token_and_is_not_minted(sim: Simulation) -> None:
    await sim.start()
    sim.declare(revoked=True)
    await asyncio.sleep(1)
    assert sim.read().status.tokens is None
    assert sim.reason == "Revoked"
    del sim.secrets.stored[SECRET]
    await asyncio.sleep(3 * LOOK_SECONDS)
    assert SECRET not in sim.secrets.stored


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"disabled": True}, "Disabled"), ({"accountName": "later"}, "AccountNotFound")],
)
@in_virtual_time
async def test_key_that_is_not_ready_has_its_token(spec: dict[str, Any], reason: str) -> None:
    sim = Simulation(**spec)
    await sim.start()
    assert sim.reason == reason
    assert sim.opens(sim.plaintext())


@in_virtual_time
async def test_new_pepper_is_for_new_keys_and_lost_one_is_replaced(sim: Simulation) -> None:
    await sim.start()
    plaintext = sim.plaintext()
    sim.peppers[2] = b"q" * 32
    await sim.start()
    await asyncio.sleep(2 * LOOK_SECONDS)
    [token] = sim.read().status.tokens or []
    assert token.pepper_version == 1
    del sim.peppers[1]
    await sim.start()
    await asyncio.sleep(2 * LOOK_SECONDS)
    [token] = sim.read().status.tokens or []
    assert token.pepper_version == 2
    assert sim.plaintext() == plaintext
    assert sim.opens(plaintext)


class TestTrouble:
    @pytest.mark.parametrize(
        ("refusal", "reason", "text"),
        [
            (
                RequestForbidden("403 forbidden"),
                "SecretForbidden",
                f"RBAC lacks get, create or patch of Secret {SECRET}: name it in the chart's"
                " value operator.keySecretNames",
            ),
            (
                RequestRejected("422 immutable"),
                "SecretNotWritable",
                f"Secret {SECRET} is immutable; delete it",
            ),
        ],
        ids=["forbidden", "immutable"],
    )
    @in_virtual_time
    async def test_refused_write_of_secret_is_reported(
        self, sim: Simulation, refusal: Exception, reason: str, text: str
    ) -> None:
        sim.secrets.refusal = refusal
        await sim.start()
        shown, message = sim.describe_ready()
        assert shown == reason
        assert message.startswith(text)
        sim.secrets.refusal = None
        await asyncio.sleep(LOOK_SECONDS + 1)
        assert sim.reason == "Available"

    @in_virtual_time
    async def test_api_that_is_away_leaves_the_key_pending(self, sim: Simulation) -> None:
        sim.secrets.refusal = KubernetesUnavailable("away")
        await sim.start()
        assert sim.reason == "KeyPending"
        sim.secrets.refusal = None
        await asyncio.sleep(10)
        assert sim.reason == "Available"

    @in_virtual_time
    async def test_unavailable_api_keeps_working_key_ready(self, sim: Simulation) -> None:
        await sim.start()
        sim.secrets.refusal = KubernetesUnavailable("away")
        await asyncio.sleep(5 * LOOK_SECONDS)
        assert sim.reason == "Available"
        assert sim.opens(sim.plaintext())

    @in_virtual_time
    async def test_unacknowledged_write_makes_no_second_key(self, sim: Simulation) -> None:
        sim.secrets.faults.append(Fault(WriteOutcomeUnknown("lost"), applied=True))
        await sim.start()
        plaintext = sim.plaintext()
        await asyncio.sleep(10)
        assert sim.secrets.writes == 1
        assert sim.reason == "Available"
        assert sim.opens(plaintext)

    @in_virtual_time
    async def test_secret_made_by_another_replica_is_used(self, sim: Simulation) -> None:
        sim.secrets.faults.append(Fault(WriteConflict("faster")))
        await sim.start()
        assert sim.reason == "Available"
        assert sim.opens(sim.plaintext())

    @in_virtual_time
    async def test_failed_status_write_is_retried(self, sim: Simulation) -> None:
        sim.kube.order_faults(
            "patch_status", Fault(WriteConflict("x")), Fault(RequestRejected("y"))
        )
        await sim.start()
        await asyncio.sleep(5)
        assert sim.opens(sim.plaintext())
        assert sim.secrets.writes == 1

    @in_virtual_time
    async def test_no_plaintext_is_logged_or_recorded(self) -> None:
        sim = Simulation(overlapSeconds=10)
        with structlog.testing.capture_logs() as logs:
            await sim.start()
            first = sim.plaintext()
            sim.declare(rotations=1)
            await asyncio.sleep(1)
        written = repr(logs) + repr(sim.kube.list_objects("gatewaykeys"))
        assert logs
        for plaintext in (first, sim.plaintext()):
            assert plaintext not in written
            assert plaintext[12:44] not in written


@in_virtual_time
async def test_many_keys_are_checked_less_often(sim: Simulation) -> None:
    for number in range(600):
        sim.declare(f"key-{number}", secretName=f"secret-{number}")
    await sim.start()
    await asyncio.sleep(20)
    await sim.start()
    before = sim.secrets.reads
    await asyncio.sleep(60)
    assert sim.secrets.reads - before <= 660
