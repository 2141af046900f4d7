"""Clients and grants that give no access are removed, all others stay (I11, contract §10.5)."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.times import format_time
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.oauth.records import project_client
from gateway_core.oauth.registration import mark_authorized
from gateway_operator.context import Failpoints
from gateway_operator.retention.oauth import MOST_LEFT, OAuthRemoval
from gateway_operator.termination import Termination
from tests.fakes.counters import FakeCounters
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes
from tests.unit.operator.declarations import Declarations

NOW = datetime(2027, 6, 1, 12, tzinfo=UTC)
CLIENT = {"clientName": "C", "redirectUris": ["a:b"], "dynamic": True}
LATELY = format_time(NOW - timedelta(minutes=1))
GRANTS, CLIENTS = "gatewaygrants", "gatewayoauthclients"


class Bench(Declarations):
    """Ann, a member of `demo`, and whatever a test adds."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.counters = FakeCounters()
        context: Any = SimpleNamespace(
            kube=self.kube,
            now=lambda: NOW,
            failpoints=Failpoints(),
            termination=Termination(self.kube),
        )
        self.sweep = OAuthRemoval(
            context,
            self.counters,
            FakeInformer(self.kube, "gatewayaccounts", GatewayAccount.model_validate),
            FakeInformer(self.kube, "gatewayusers", GatewayUser.model_validate),
        ).sweep
        for name in ("demo", "other"):
            self.put_account(name)
        self.put_user("ann", "demo")

    def put_aged(self, plural: str, name: str, spec: Any, age: timedelta) -> None:
        self.kube.clock = lambda: format_time(NOW - age)
        self.put(plural, name, spec)

    def put_client(self, name: str, age: timedelta, **spec: Any) -> None:
        self.put_aged(CLIENTS, name, {**CLIENT, **spec}, age)

    def put_grant(self, name: str, age: timedelta = timedelta(hours=1), **spec: Any) -> None:
        base = {
            "userName": "ann",
            "accountName": "demo",
            "clientId": "client_a",
            "clientName": "C",
            "redirectHost": "a:",
            "scopes": ["mcp:read"],
            "resource": "https://mcp.example.com",
            "expirationTime": format_time(NOW + timedelta(days=9)),
            "refreshToken": {
                "digest": "0" * 64,
                "expirationTime": format_time(NOW + timedelta(days=9)),
            },
        }
        self.put_aged(GRANTS, name, {**base, **spec}, age)

    def names(self, plural: str) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.kube.list_objects(plural))

    def last_use(self, plural: str, name: str) -> str | None:
        found = self.kube.find(plural, name)
        assert found is not None
        return (found.get("status") or {}).get("lastUsedTime")


@pytest.mark.parametrize(
    ("age", "spec", "stays"),
    [
        (timedelta(hours=23), {}, True),
        (timedelta(hours=25), {}, False),
        (timedelta(days=179), {"authorized": True}, True),
        (timedelta(days=181), {"authorized": True}, False),
        (timedelta(days=400), {"authorized": True, "lastAuthorizedTime": LATELY}, True),
        (timedelta(days=400), {"dynamic": False}, True),
        (timedelta(days=400), {"dynamic": False, "authorized": True}, True),
    ],
)
async def test_client_without_a_grant_goes_after_its_time(
    age: timedelta, spec: dict[str, Any], stays: bool
) -> None:
    bench = Bench()
    bench.put_client("client-a", age, **spec)
    bench.put_client("client-granted", timedelta(days=400), authorized=True)
    bench.put_grant("grant-a", clientId="client_granted")
    assert await bench.sweep() == (not stays)
    assert bench.names(CLIENTS) == [*(["client-a"] if stays else []), "client-granted"]
    assert bench.names(GRANTS) == ["grant-a"]


async def test_grant_made_during_the_sweep_keeps_its_idle_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.put_client("client-a", timedelta(days=400), authorized=True)
    delete = bench.kube.delete

    async def grant_first(plural: str, name: str, **given: Any) -> Any:
        client = project_client(await bench.kube.get(plural, name))
        assert client is not None
        await mark_authorized(bench.kube, client, "ann", NOW.timestamp())
        return await delete(plural, name, **given)

    monkeypatch.setattr(bench.kube, "delete", grant_first)
    assert await bench.sweep() == 0
    assert bench.names(CLIENTS) == ["client-a"]


async def test_few_clients_without_a_grant_are_kept_for_one_user() -> None:
    bench = Bench()
    for n in range(MOST_LEFT + 5):
        bench.put_client(
            f"client-{n:02}", timedelta(days=n + 1), authorized=True, authorizedBy="ann"
        )
    bench.put_client("client-bob", timedelta(days=99), authorized=True, authorizedBy="bob")
    # its grant may not be seen here yet
    bench.put_client("client-new", timedelta(minutes=1), authorized=True, authorizedBy="ann")
    bench.put_client("client-used", timedelta(days=99), authorized=True, authorizedBy="ann")
    bench.put_grant("grant-a", clientId="client_used")
    assert await bench.sweep() == 5
    newest = [f"client-{n:02}" for n in range(MOST_LEFT)]
    assert bench.names(CLIENTS) == [*newest, "client-bob", "client-new", "client-used"]


@pytest.mark.parametrize(
    "spec",
    [
        {"expirationTime": format_time(NOW)},
        {"refreshToken": {"digest": "0" * 64, "expirationTime": format_time(NOW)}},
        {"userName": "bob"},
        {"accountName": "other"},
        {"accountName": "gone"},
        {"clientId": "client_gone"},
    ],
)
async def test_grant_that_gives_no_access_goes(spec: dict[str, Any]) -> None:
    bench = Bench()
    bench.put_client("client-a", timedelta(hours=1), authorized=True)
    bench.put_grant("grant-a")
    bench.put_grant("grant-b", **spec)
    bench.put_grant("grant-c", clientId="https://app.example.com/client.json")
    assert await bench.sweep() == 1
    assert bench.names(GRANTS) == ["grant-a", "grant-c"]


async def test_young_grant_stays_though_its_user_is_not_seen_yet() -> None:
    bench = Bench()
    bench.put_grant("grant-a", timedelta(minutes=1), userName="bob")
    await bench.sweep()
    assert bench.names(GRANTS) == ["grant-a"]


async def test_last_use_is_copied_to_grant_and_client() -> None:
    bench = Bench()
    bench.put_client("client-a", timedelta(days=9), authorized=True)
    bench.put_grant("grant-a", timedelta(days=8))
    used = NOW - timedelta(minutes=3)
    await bench.counters.note_used("demo", {"grant-a": used.timestamp()})
    await bench.sweep()
    assert bench.last_use(GRANTS, "grant-a") == format_time(used)
    assert bench.last_use(CLIENTS, "client-a") == format_time(used)


async def test_client_authorized_during_the_sweep_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.put_client("client-a", timedelta(hours=25))
    delete = bench.kube.delete

    async def authorize_first(plural: str, name: str, **given: Any) -> Any:
        obj = await bench.kube.get(plural, name)
        await bench.kube.patch(plural, obj, {"spec": {"authorized": True}})
        return await delete(plural, name, **given)

    monkeypatch.setattr(bench.kube, "delete", authorize_first)
    assert await bench.sweep() == 0
    assert bench.names(CLIENTS) == ["client-a"]


async def test_declared_client_goes_after_its_grants() -> None:
    bench = Bench()
    bench.put_client("client-a", timedelta(hours=1), dynamic=False)
    bench.put_client("client-b", timedelta(hours=1), dynamic=False)
    bench.put_grant("grant-a", timedelta(minutes=1), clientId="client_a")
    bench.put_grant("grant-b", timedelta(minutes=1), clientId="client_b")
    await bench.sweep()
    await bench.kube.delete(CLIENTS, "client-a")
    left = bench.kube.find(CLIENTS, "client-a")
    assert left is not None
    assert project_client(left) is None
    await bench.sweep()
    assert bench.names(GRANTS) == ["grant-b"]
    assert bench.names(CLIENTS) == ["client-a", "client-b"], "it keeps its name in this sweep"
    await bench.sweep()
    assert bench.names(CLIENTS) == ["client-b"]


async def test_declared_client_goes_without_the_crd_of_grants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.put_client("client-a", timedelta(hours=1), dynamic=False)
    await bench.sweep()
    await bench.kube.delete(CLIENTS, "client-a")
    list_page = bench.kube.list_page

    async def refuse(plural: str, **options: Any) -> Any:
        if plural == GRANTS:
            raise ObjectNotFound("the server could not find the requested resource")
        return await list_page(plural, **options)

    monkeypatch.setattr(bench.kube, "list_page", refuse)
    await bench.sweep()
    assert bench.names(CLIENTS) == []
