"""The audit of an account has a row for each membership that kubectl has taken from a user."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gateway_core.accounts.changes import read_changes
from gateway_core.accounts.records import project_user
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import CHANGES_ANNOTATION
from gateway_core.kube.errors import WriteConflict
from gateway_operator.accounts.memberships import Memberships
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes
from tests.unit.operator.declarations import Declarations

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)
USERS = GatewayUser.plural


class Bench(Declarations):
    """An operator that looks at the user mia whenever it is told to."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        accounts = FakeInformer(self.kube, "gatewayaccounts", GatewayAccount.model_validate)
        context: Any = SimpleNamespace(kube=self.kube, now=lambda: NOW)
        self.memberships = Memberships(context, accounts)
        for name in ("demo", "other"):
            self.put_account(name)
        self.put_user("mia", "demo", "other")

    async def look(self) -> None:
        """Compares, and writes the status as the controller of readiness does."""
        change = await self.memberships.compare(GatewayUser.read(self.user))
        if change:
            await self.kube.patch_status(USERS, self.user, change)

    @property
    def user(self) -> Any:
        return self.kube.find(USERS, "mia")

    async def edit(self, *accounts: str) -> None:
        """Has kubectl leave the user these memberships."""
        kept = [{"accountName": account, "role": "member"} for account in accounts]
        await self.kube.patch(USERS, self.user, {"spec": {"memberships": kept}})

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        return [(row.account, row.by, row.text) for row in read_changes(self.user)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


REMOVAL = ("demo", "client/", "removed as member")


async def test_membership_removed_by_another_program_is_noted_once(bench: Bench) -> None:
    await bench.look()
    assert bench.rows == []
    await bench.edit("other")
    for _ in range(3):
        await bench.look()
    assert bench.rows == [REMOVAL]
    [row] = project_user(bench.user).list_changes("demo")
    assert row.text == "removed as member"


async def test_removal_without_an_operator_is_noted_at_its_next_start(bench: Bench) -> None:
    await bench.look()
    await bench.edit()
    bench.memberships = Memberships(bench.memberships.context, bench.memberships.accounts)
    await bench.look()
    assert {account for account, _, _ in bench.rows} == {"demo", "other"}


async def test_removal_that_the_api_has_noted_is_not_noted_again(bench: Bench) -> None:
    await bench.look()
    await bench.edit("other")
    note = '[["2026-11-21T10:00:00Z","user/olga","removed as member","demo"]]'
    noted = {"metadata": {"annotations": {CHANGES_ANNOTATION: note}}}
    await bench.kube.patch(USERS, bench.user, noted)
    await bench.look()
    assert bench.rows == [("demo", "user/olga", "removed as member")]


async def test_membership_given_again_and_removed_again_has_three_rows(bench: Bench) -> None:
    await bench.look()
    for accounts in (("other",), ("demo", "other"), ("other",)):
        await bench.edit(*accounts)
        await bench.look()
    assert bench.rows == [REMOVAL, ("demo", "client/", "added as member"), REMOVAL]


async def test_removed_account_gets_no_rows(bench: Bench) -> None:
    await bench.look()
    bench.kube.remove("gatewayaccounts", "demo")
    await bench.edit("other")
    await bench.look()
    assert bench.rows == []


async def test_user_changed_meanwhile_is_looked_at_again(bench: Bench) -> None:
    await bench.look()
    await bench.edit("other")
    old = bench.user
    change = await bench.memberships.compare(GatewayUser.read(old))
    with pytest.raises(WriteConflict):
        await bench.kube.patch_status(USERS, old, change)
    await bench.look()
    assert bench.rows == [REMOVAL]
