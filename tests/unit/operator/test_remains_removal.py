"""Nothing of a deleted account or user is left to the next of its name (decision 71)."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from gateway_core.accounts.changes import Change, read_changes, write_changes
from gateway_core.accounts.records import project_account, project_user
from gateway_core.accounts.remains import read_removed
from gateway_core.accounts.sign_in import mark_password
from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.ids import REMAINS_FINALIZER, STORED_FINALIZER
from gateway_core.api.times import format_time
from gateway_core.billing.counters import Ledger
from gateway_core.billing.journal import name_object
from gateway_core.kube.errors import ObjectNotFound
from gateway_operator.accounts.kinds import Accounts, Users, project_key
from gateway_operator.accounts.memberships import Memberships
from gateway_operator.accounts.readiness import ReadinessController
from gateway_operator.accounts.removal import LATE, QUIET_SECONDS, RemainsRemoval
from gateway_operator.events import Events
from gateway_operator.termination import PATIENCE_SECONDS, Termination
from tests.fakes.clock import in_virtual_time, wait_until
from tests.fakes.counters import FakeCounters
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.objects import FakeObjects
from tests.unit.billing.journal_harness import make_record, store_object
from tests.unit.operator.declarations import Declarations
from tests.unit.operator.environment import Killable
from tests.unit.operator.steps import ACCOUNT_STEPS

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)
ACCOUNTS, USERS, KEYS = "gatewayaccounts", "gatewayusers", "gatewaykeys"
OWNED = {
    **dict.fromkeys((KEYS, "gatewaygrants", "gatewayguardrails", "gatewayusages"), "spec"),
    **dict.fromkeys(
        ("gatewaytasks", "gatewaybatches", "gatewayuploads", "gatewayfiles"), "request"
    ),
}
FOLDERS = (
    *("batches", "files", "temporary", "uploads"),
    *("inputs", "tasks", "keys", "guardrails", "usage"),
)


class Bench(Killable, Declarations):
    """The accounts `demo` and `other`, each with one object of every kind and one of every folder,
    and Mia, a member of both who has made a key of each."""

    def __init__(self) -> None:
        super().__init__()
        self.kube = FakeKubernetes()
        self.store = FakeObjects()
        self.counters = FakeCounters()
        accounts = FakeInformer(self.kube, ACCOUNTS, GatewayAccount.model_validate)
        users = FakeInformer(self.kube, USERS, GatewayUser.model_validate)
        context: Any = SimpleNamespace(
            kube=self.kube,
            store=self.store,
            failpoints=self.failpoints,
            now=lambda: NOW,
            termination=Termination(self.kube),
        )
        self.context = context
        self.termination: Termination = context.termination
        keys = FakeInformer(self.kube, KEYS, project_key)
        self.tables = accounts, users, keys
        self.running: asyncio.Task[None] | None = None
        self.begin()
        for name in ("demo", "other"):
            self.put_account(name)
            for plural, where in OWNED.items():
                named = {"accountName": name, "displayName": name}
                spec = named if where == "spec" else {"request": named}
                if plural == KEYS:
                    spec["createdBy"] = "mia"
                self.put(plural, f"{plural}-{name}", spec)
            for folder in FOLDERS:
                self.store.contents[f"{folder}/{name}/x"] = b"{}"
        self.put_user("mia", "demo", "other", role="owner")

    def begin(self) -> None:
        accounts, users, keys = self.tables
        self.context.failpoints = self.failpoints
        self.removal = RemainsRemoval(self.context, self.counters, users, keys)  # type: ignore[arg-type]
        kinds = (
            Accounts(accounts, AccountDefaults(), self.removal),
            Users(users, accounts, self.removal, Memberships(self.context, accounts)),
        )
        events = Events(self.kube, self.kube.post_event)
        self.controller = ReadinessController(self.kube, kinds, events, lambda: NOW)

    def halt(self) -> None:
        assert self.running is not None
        self.running.cancel()

    async def restart(self) -> None:
        if self.running is not None:
            await asyncio.gather(self.running, return_exceptions=True)
        self.failpoints.is_dead = False
        self.running = None
        self.begin()
        await self.settle(0)

    async def settle(self, seconds: float = 1) -> None:
        if self.running is None:
            self.running = asyncio.create_task(self.controller.run())
        await asyncio.sleep(seconds)
        assert not self.running.done()

    async def delete(self, plural: str, name: str) -> None:
        await self.settle()
        await self.kube.delete(plural, name)

    def list_owned(self, account: str) -> list[str]:
        found = [
            obj["metadata"]["name"]
            for plural, where in OWNED.items()
            for obj in self.kube.list_objects(plural)
            if (obj["spec"] if where == "spec" else obj["spec"]["request"])["accountName"]
            == account
        ]
        return found + [key for key in self.store.contents if f"/{account}/" in f"/{key}"]

    def message(self, plural: str, name: str) -> str:
        obj = self.kube.find(plural, name) or {}
        return str(obj["status"]["conditions"][0]["message"])


@pytest.fixture
def bench() -> Bench:
    return Bench()


@in_virtual_time
async def test_deleted_account_leaves_only_its_charges(bench: Bench) -> None:
    others = bench.list_owned("other")
    uid = (bench.kube.find(ACCOUNTS, "demo") or {})["metadata"]["uid"]
    await bench.counters.note_used("demo", {"key": 1.0})
    await bench.delete(ACCOUNTS, "demo")
    await bench.settle(QUIET_SECONDS + 5)
    assert bench.kube.find(ACCOUNTS, "demo") is None
    left = bench.list_owned("demo")
    assert left
    assert all(key.startswith(f"closed/demo/{uid}/") for key in left)
    documents = [orjson.loads(bench.store.contents[key]) for key in left]
    assert {"accountName": "demo", "displayName": "demo"} in [d.get("spec") for d in documents]
    assert bench.list_owned("other") == others
    assert await bench.counters.read_used("demo") == {}
    memberships = (bench.kube.find(USERS, "mia") or {})["spec"]["memberships"]
    assert memberships == [{"accountName": "other", "role": "owner"}]


@in_virtual_time
async def test_kills_at_each_step_of_a_removal_leave_only_charges(bench: Bench) -> None:
    bench.arm(*ACCOUNT_STEPS, *ACCOUNT_STEPS)
    bench.begin()
    others = bench.list_owned("other")
    await bench.delete(ACCOUNTS, "demo")
    async with bench.reviving():
        await wait_until(
            lambda: bench.kube.find(ACCOUNTS, "demo") is None, seconds=20 * QUIET_SECONDS
        )
    assert not +bench.failpoints.left
    assert all(key.startswith("closed/demo/") for key in bench.list_owned("demo"))
    assert bench.list_owned("other") == others


@in_virtual_time
async def test_name_is_taken_until_the_last_file_is_gone(bench: Bench) -> None:
    meta = {"name": "file-a", "finalizers": [STORED_FINALIZER]}
    spec = {"request": {"accountName": "demo"}}
    bench.kube.put("gatewayfiles", {"metadata": meta, "spec": spec})
    await bench.delete(ACCOUNTS, "demo")
    await bench.settle(300)
    assert bench.message(ACCOUNTS, "demo") == "being removed; left: files (1)"
    obj = bench.kube.find("gatewayfiles", "file-a")
    assert obj is not None
    assert obj["metadata"]["deletionTimestamp"]
    await bench.kube.patch("gatewayfiles", obj, {"metadata": {"finalizers": []}})
    await bench.settle(QUIET_SECONDS + 5)
    assert bench.kube.find(ACCOUNTS, "demo") is None


@in_virtual_time
async def test_calls_under_way_and_their_charges_are_waited_for(bench: Bench) -> None:
    await store_object(bench.store, "api-0", 1, make_record(1, account="demo"))
    token = await bench.counters.begin_rebuild("demo")
    assert token is not None
    holds = {"call-api-0-1": 5}
    await bench.counters.finish_rebuild("demo", token, Ledger(0, {}, holds))
    await bench.delete(ACCOUNTS, "demo")
    await bench.settle(60)
    expected = "being removed; left: calls under way (1), charges of calls (1)"
    assert bench.message(ACCOUNTS, "demo") == expected
    await bench.counters.settle("demo", "call-api-0-1", 5, NOW)
    await bench.settle(60)
    assert bench.message(ACCOUNTS, "demo") == "being removed; left: charges of calls (1)"
    await bench.store.delete(name_object("api-0", 1))
    await bench.settle(QUIET_SECONDS + 5)
    assert bench.kube.find(ACCOUNTS, "demo") is None


@in_virtual_time
async def test_object_made_late_is_removed_too(bench: Bench) -> None:
    await bench.delete(ACCOUNTS, "demo")
    await bench.settle(QUIET_SECONDS - 2)
    bench.put("gatewaytasks", "task-late", {"request": {"accountName": "demo"}})
    await bench.settle(QUIET_SECONDS - 2)
    assert bench.kube.find(ACCOUNTS, "demo") is not None
    assert bench.kube.find("gatewaytasks", "task-late") is None
    await bench.settle(5)
    assert bench.kube.find(ACCOUNTS, "demo") is None


@in_virtual_time
async def test_key_declared_for_the_next_account_keeps_none(bench: Bench) -> None:
    """A GitOps tool makes it again within seconds of each removal."""
    bench.kube.clock = lambda: format_time(NOW)
    await bench.delete(ACCOUNTS, "demo")
    key = {"accountName": "demo", "displayName": "declared"}
    for _ in range(5):
        if bench.kube.find(KEYS, "declared") is None:
            bench.put(KEYS, "declared", key)
        await bench.settle(QUIET_SECONDS / 2)
    assert bench.kube.find(ACCOUNTS, "demo") is not None
    bench.kube.clock = lambda: format_time(NOW + LATE + timedelta(seconds=1))
    for _ in range(5):
        if bench.kube.find(KEYS, "declared") is None:
            bench.put(KEYS, "declared", key)
        await bench.settle(QUIET_SECONDS / 2)
    assert bench.kube.find(ACCOUNTS, "demo") is None
    assert bench.kube.find(KEYS, "declared") is not None


@in_virtual_time
async def test_removal_of_a_predecessor_spares_its_successor(bench: Bench) -> None:
    await bench.settle()
    obj = bench.kube.find(ACCOUNTS, "demo")
    assert obj is not None
    await bench.kube.delete(ACCOUNTS, "demo")
    deleted = GatewayAccount.model_validate(bench.kube.find(ACCOUNTS, "demo"))
    # another process has ended the removal, and an admin has made the account again
    bench.kube.remove(ACCOUNTS, "demo")
    bench.put_account("demo")
    owned = bench.list_owned("demo")
    await bench.removal.remove(deleted)
    assert bench.list_owned("demo") == owned


@in_virtual_time
async def test_removal_of_a_user_spares_the_keys_of_its_successor(bench: Bench) -> None:
    await bench.settle()
    await bench.kube.delete(USERS, "mia")
    deleted = GatewayUser.model_validate(bench.kube.find(USERS, "mia"))
    bench.kube.remove(USERS, "mia")
    bench.put_user("mia")
    await bench.removal.remove(deleted)
    assert not any(key["spec"].get("revoked") for key in bench.kube.list_objects(KEYS))


@in_virtual_time
async def test_kinds_without_a_crd_keep_no_account(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.settle()
    list_page = bench.kube.list_page

    async def refuse(plural: str, **options: Any) -> Any:
        if plural not in (ACCOUNTS, USERS):
            raise ObjectNotFound("the server could not find the requested resource")
        return await list_page(plural, **options)

    monkeypatch.setattr(bench.kube, "list_page", refuse)
    await bench.delete(ACCOUNTS, "demo")
    await bench.settle(QUIET_SECONDS + 5)
    assert bench.kube.find(ACCOUNTS, "demo") is None


@in_virtual_time
async def test_terminating_namespace_keeps_no_owner(bench: Bench) -> None:
    client = {"clientName": "C", "redirectUris": ["a:b"]}
    meta = {"name": "client-a", "finalizers": [REMAINS_FINALIZER]}
    bench.kube.put("gatewayoauthclients", {"metadata": meta, "spec": client})
    await bench.settle()
    bench.kube.is_terminating = True
    await bench.termination.look()
    await bench.settle(5)
    for plural in (ACCOUNTS, USERS, "gatewayoauthclients"):
        objects = bench.kube.list_objects(plural)
        assert objects
        assert not any(obj["metadata"].get("finalizers") for obj in objects)


@in_virtual_time
async def test_terminating_kind_does_not_wait_for_a_store_that_is_away(bench: Bench) -> None:
    await bench.settle()
    bench.store.away = True
    bench.kube.terminating = frozenset({ACCOUNTS})
    await bench.termination.look()
    await bench.kube.delete_all(ACCOUNTS)
    await bench.settle(PATIENCE_SECONDS - 5)
    assert bench.kube.list_objects(ACCOUNTS)
    await bench.settle(75)
    assert bench.kube.list_objects(ACCOUNTS) == []


@in_virtual_time
async def test_deleted_user_loses_grants_and_keys_for_ever(bench: Bench) -> None:
    grant = {"accountName": "other", "userName": "mia"}
    bench.put("gatewaygrants", "grant-mia", grant)
    await bench.delete(USERS, "mia")
    await bench.settle(QUIET_SECONDS + 5)
    assert bench.kube.find(USERS, "mia") is None
    assert bench.kube.find("gatewaygrants", "grant-mia") is None
    for name in ("demo", "other"):
        key = bench.kube.find(KEYS, f"{KEYS}-{name}") or {}
        assert key["spec"]["revoked"]
        assert key["metadata"]["annotations"]


def annotate_changes(bench: Bench, user: str, *rows: Change) -> None:
    obj = bench.kube.find(USERS, user)
    assert obj is not None
    meta = {**obj["metadata"], "annotations": write_changes(rows)}
    bench.kube.put(USERS, {**obj, "metadata": meta})


DEMO_ROW, OTHER_ROW, LEFT_ROW = (
    Change("2026-11-20T10:00:00Z", "user/ann", "role changed from viewer to owner", account)
    for account in ("demo", "other", "left")
)


@in_virtual_time
async def test_rows_of_a_deleted_user_stay_in_each_account(bench: Bench) -> None:
    bench.put_account("left")
    annotate_changes(bench, "mia", DEMO_ROW, OTHER_ROW, LEFT_ROW)
    await bench.delete(USERS, "mia")
    deleted = (bench.kube.find(USERS, "mia") or {})["metadata"]["deletionTimestamp"]
    bench.arm("after-remains")
    bench.begin()
    async with bench.reviving():
        await bench.settle(QUIET_SECONDS + 30)
    assert bench.kube.find(USERS, "mia") is None
    for row in (DEMO_ROW, OTHER_ROW, LEFT_ROW):
        found = await read_removed(bench.store, USERS, row.account, "mia")
        assert found is not None
        assert read_changes(found) == [row, Change(deleted, "client/", "deleted")]


@in_virtual_time
async def test_rows_of_a_member_go_with_their_account(bench: Bench) -> None:
    annotate_changes(bench, "mia", DEMO_ROW, OTHER_ROW)
    bench.put_user("bob")
    annotate_changes(bench, "bob", DEMO_ROW)
    await bench.delete(ACCOUNTS, "demo")
    await bench.settle(QUIET_SECONDS + 5)
    assert bench.kube.find(ACCOUNTS, "demo") is None
    assert read_changes(bench.kube.find(USERS, "mia") or {}) == [OTHER_ROW]
    assert read_changes(bench.kube.find(USERS, "bob") or {}) == []


@in_virtual_time
async def test_object_without_finalizer_gets_it_and_keeps_others(bench: Bench) -> None:
    meta = {"name": "third", "finalizers": ["example.com/own"]}
    owner = {"name": "D", "email": "d@example.com"}
    bench.kube.put(ACCOUNTS, {"metadata": meta, "spec": {"displayName": "T", "owner": owner}})
    await bench.settle()
    obj = bench.kube.find(ACCOUNTS, "third") or {}
    assert obj["metadata"]["finalizers"] == ["example.com/own", REMAINS_FINALIZER]


def test_account_and_user_are_refused_from_their_deletion_on() -> None:
    meta = {"name": "x", "uid": "u", "creationTimestamp": "2026-11-21T10:00:00Z"}
    left = {**meta, "deletionTimestamp": "2026-11-21T10:00:00Z"}
    owner = {"name": "D", "email": "d@example.com"}
    spec = {"displayName": "X", "owner": owner, "email": "x@example.com"}
    assert not project_account({"metadata": meta, "spec": spec}).suspended
    assert project_account({"metadata": left, "spec": spec}).suspended
    assert not project_user({"metadata": meta, "spec": spec}).suspended
    assert project_user({"metadata": left, "spec": spec}).suspended


def test_session_of_a_user_is_none_of_the_next_of_that_name() -> None:
    def make(uid: str) -> Any:
        meta = {"name": "x", "uid": uid, "creationTimestamp": "2026-11-21T10:00:00Z"}
        return project_user(
            {"metadata": meta, "spec": {"displayName": "X", "email": "x@example.com"}}
        )

    assert mark_password(make("a")) == mark_password(make("a"))
    assert mark_password(make("a")) != mark_password(make("b"))
