"""The audit keeps the rows of a deleted key, guardrail or grant, whoever deletes it."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gateway_core.accounts.changes import Change, note_change, note_ending, read_changes
from gateway_core.accounts.remains import read_removed
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import REMAINS_FINALIZER, UNCHECKED_ANNOTATION
from gateway_core.api.times import format_time
from gateway_core.kube.errors import WriteConflict, WriteOutcomeUnknown
from gateway_operator.accounts.histories import KINDS, Histories, find_due
from gateway_operator.termination import PATIENCE_SECONDS, Termination
from tests.fakes.clock import in_virtual_time
from tests.fakes.counters import FakeCounters
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.objects import FakeObjects
from tests.unit.operator.declarations import Declarations
from tests.unit.operator.environment import Killable
from tests.unit.operator.steps import HISTORY_STEPS

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)
KEYS, GUARDRAILS, GRANTS = KINDS
FAR = format_time(NOW + timedelta(days=9))
REVOKED, ENDED = "access revoked", "access ended"


class Bench(Killable, Declarations):
    """The account `demo` and Ann, a member of it."""

    def __init__(self) -> None:
        super().__init__()
        self.kube = FakeKubernetes(clock=lambda: format_time(NOW))
        self.store = FakeObjects()
        self.counters = FakeCounters()
        self.termination = Termination(self.kube)
        self.accounts = FakeInformer(self.kube, "gatewayaccounts", GatewayAccount.model_validate)
        self.users = FakeInformer(self.kube, "gatewayusers", GatewayUser.model_validate)
        self.put_account("demo")
        self.put_user("ann", "demo")
        self.histories = self.begin()

    async def restart(self) -> None:
        self.halt()
        self.failpoints.is_dead = False
        self.histories = self.begin()

    def begin(self) -> Histories:
        context: Any = SimpleNamespace(
            kube=self.kube,
            store=self.store,
            failpoints=self.failpoints,
            termination=self.termination,
        )
        due = {plural: FakeInformer(self.kube, plural, find_due) for plural in KINDS}
        for plural, table in due.items():
            for obj in self.kube.list_objects(plural):
                table.upsert(obj)
        histories = Histories(context, self.counters, self.users, self.accounts, {**due})
        histories.look_again()
        return histories

    def halt(self) -> None:
        self.histories.queue.is_draining = True

    def put_grant(self, name: str = "grant-a", **spec: Any) -> None:
        token = {"digest": "0" * 64, "expirationTime": FAR}
        base = {
            "userName": "ann",
            "accountName": "demo",
            "clientId": "client_a",
            "clientName": "Editor",
            "redirectHost": "a:",
            "scopes": ["mcp:read"],
            "resource": "https://mcp.example.com",
            "expirationTime": FAR,
            "refreshToken": token,
        }
        self.put(GRANTS, name, {**base, **spec})

    def annotate(self, plural: str, name: str, annotations: dict[str, str]) -> None:
        obj = self.kube.find(plural, name)
        assert obj is not None
        meta = {**obj["metadata"], "annotations": annotations}
        self.kube.put(plural, {**obj, "metadata": meta})

    async def end(self, plural: str, name: str) -> None:
        """Delete an object once it is guarded, and wait until it is gone."""
        await asyncio.sleep(1)
        assert await self.kube.delete(plural, name) is not None
        await asyncio.sleep(1)
        assert self.kube.find(plural, name) is None

    async def read_rows(self, plural: str, name: str, account: str = "demo") -> list[Change]:
        found = await read_removed(self.store, plural, account, name)
        return [] if found is None else read_changes(found)


def put_any(bench: Bench, plural: str) -> None:
    put = {KEYS: bench.put_key, GUARDRAILS: bench.put_guardrail, GRANTS: bench.put_grant}
    put[plural]("x")


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("plural", KINDS)
@in_virtual_time
async def test_object_gets_the_finalizer_and_keeps_others(plural: str) -> None:
    bench = Bench()
    put_any(bench, plural)
    obj = bench.kube.find(plural, "x")
    assert obj is not None
    bench.kube.put(plural, {**obj, "metadata": {**obj["metadata"], "finalizers": ["other/one"]}})
    await asyncio.sleep(1)
    guarded = bench.kube.find(plural, "x")
    assert guarded is not None
    assert guarded["metadata"]["finalizers"] == ["other/one", REMAINS_FINALIZER]
    writes = len(bench.kube.calls)
    await asyncio.sleep(60)
    assert len(bench.kube.calls) == writes


@pytest.mark.parametrize("plural", KINDS)
@in_virtual_time
async def test_rows_outlive_the_object_and_have_its_end(plural: str) -> None:
    bench = Bench()
    put_any(bench, plural)
    bench.annotate(plural, "x", note_change(None, "user/ann", "created", NOW))
    await bench.end(plural, "x")
    end = Change(format_time(NOW), "client/", REVOKED if plural == GRANTS else "deleted")
    rows = await bench.read_rows(plural, "x")
    assert rows[-1] == end
    assert len(rows) == 2
    assert rows[0].by == "user/ann"


@in_virtual_time
async def test_noted_end_names_who_has_ended_it(bench: Bench) -> None:
    bench.put_grant()
    bench.annotate(GRANTS, "grant-a", note_ending("user/olga", REVOKED))
    await bench.end(GRANTS, "grant-a")
    assert (await bench.read_rows(GRANTS, "grant-a"))[-1].by == "user/olga"


@in_virtual_time
async def test_use_of_a_grant_stays_in_its_rows(bench: Bench) -> None:
    bench.put_grant()
    used = (NOW - timedelta(minutes=5)).timestamp()
    await bench.counters.note_used("demo", {"grant-a": used})
    await bench.end(GRANTS, "grant-a")
    given, use, end = await bench.read_rows(GRANTS, "grant-a")
    assert (given.by, given.text) == ("user/ann", "access given")
    at = format_time(NOW - timedelta(minutes=5))
    assert use == Change(at, "application/Editor", "access last used")
    assert end.text == REVOKED


@pytest.mark.parametrize(
    ("change", "by", "text"),
    [
        ("expire", "gateway/", "access expired"),
        ("user", "gateway/", f"{ENDED}: its user was removed"),
        ("role", "gateway/", f"{ENDED}: its user is no member any more"),
    ],
)
@in_virtual_time
async def test_end_by_the_gateway_says_why(change: str, by: str, text: str) -> None:
    bench = Bench()
    ends = format_time(NOW - timedelta(seconds=1)) if change == "expire" else FAR
    bench.put_grant(expirationTime=ends)
    if change == "user":
        bench.kube.remove("gatewayusers", "ann")
        bench.users.forget("ann")
    if change == "role":
        bench.put_user("ann")
    await bench.end(GRANTS, "grant-a")
    end = (await bench.read_rows(GRANTS, "grant-a"))[-1]
    assert (end.by, end.text) == (by, text)


@pytest.mark.parametrize("plural", KINDS)
@in_virtual_time
async def test_deletion_without_an_operator_is_archived_by_the_next(plural: str) -> None:
    bench = Bench()
    put_any(bench, plural)
    await asyncio.sleep(1)
    bench.halt()
    assert await bench.kube.delete(plural, "x") is not None
    await asyncio.sleep(600)
    assert await bench.read_rows(plural, "x") == []
    await bench.restart()
    await asyncio.sleep(1)
    assert bench.kube.find(plural, "x") is None
    assert len(await bench.read_rows(plural, "x")) >= 1


@pytest.mark.parametrize("plural", KINDS)
@in_virtual_time
async def test_kill_after_the_archive_leaves_each_row_once(plural: str) -> None:
    bench = Bench()
    put_any(bench, plural)
    await asyncio.sleep(1)
    bench.arm(*HISTORY_STEPS)
    await bench.restart()
    assert await bench.kube.delete(plural, "x") is not None
    await asyncio.sleep(1)
    assert bench.kube.find(plural, "x") is not None
    rows = await bench.read_rows(plural, "x")
    await bench.restart()
    await asyncio.sleep(1)
    assert bench.kube.find(plural, "x") is None
    assert await bench.read_rows(plural, "x") == rows


@pytest.mark.parametrize(
    "fault",
    [
        Fault(WriteConflict("changed")),
        Fault(WriteOutcomeUnknown("lost")),
        Fault(WriteOutcomeUnknown("lost"), applied=True),
    ],
)
@in_virtual_time
async def test_faults_of_the_release_lose_no_row(fault: Fault) -> None:
    bench = Bench()
    bench.put_key("x")
    await asyncio.sleep(1)
    assert await bench.kube.delete(KEYS, "x") is not None
    bench.kube.order_faults("patch", fault)
    await asyncio.sleep(1)
    # the watch shows who was faster
    bench.histories.look_again()
    await asyncio.sleep(60)
    assert bench.kube.find(KEYS, "x") is None
    assert len(await bench.read_rows(KEYS, "x")) == 1


@in_virtual_time
async def test_object_stays_while_the_store_is_away(bench: Bench) -> None:
    bench.put_grant()
    await asyncio.sleep(1)
    bench.store.away = True
    assert await bench.kube.delete(GRANTS, "grant-a") is not None
    await asyncio.sleep(3600)
    assert bench.kube.find(GRANTS, "grant-a") is not None
    bench.store.away = False
    await asyncio.sleep(60)
    assert bench.kube.find(GRANTS, "grant-a") is None
    assert len(await bench.read_rows(GRANTS, "grant-a")) == 2


@in_virtual_time
async def test_rows_are_archived_while_redis_is_away(bench: Bench) -> None:
    bench.put_grant()
    bench.counters.away = True
    await bench.end(GRANTS, "grant-a")
    assert len(await bench.read_rows(GRANTS, "grant-a")) == 2


@in_virtual_time
async def test_guardrail_of_a_refused_create_has_no_rows(bench: Bench) -> None:
    bench.put_guardrail("grd-a")
    bench.annotate(GUARDRAILS, "grd-a", {UNCHECKED_ANNOTATION: "true"})
    await asyncio.sleep(1)
    assert await bench.kube.delete(GUARDRAILS, "grd-a") is None


@in_virtual_time
async def test_terminating_kind_waits_for_no_store(bench: Bench) -> None:
    bench.put_key("x")
    await asyncio.sleep(1)
    bench.kube.terminating = frozenset({KEYS})
    bench.store.away = True
    await bench.termination.look()
    assert await bench.kube.delete(KEYS, "x") is not None
    bench.put_key("y")
    await asyncio.sleep(PATIENCE_SECONDS + 40)
    assert bench.kube.find(KEYS, "x") is None
    made = bench.kube.find(KEYS, "y")
    assert made is not None
    assert not made["metadata"].get("finalizers")
