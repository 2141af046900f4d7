"""Access tokens: the caller of one, and how it ends (contract §10.3)."""

import asyncio
import math
import time

import pytest

from gateway_core.accounts.records import project_account, project_user
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.errors import Unauthenticated, Unavailable
from gateway_core.api.key import digest
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.read_through import ReadThrough
from gateway_core.oauth.fair_cache import FairCache
from gateway_core.oauth.records import project_client, project_grant
from gateway_core.oauth.tokens import TokenMint
from gateway_core.oauth.verification import GONE_SECONDS, READS_AT_ONCE, TokenVerifier
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes

AUDIENCE = "https://mcp.example.com"
GRANT = "grant-" + "a" * 26
PEPPERS = {1: b"p" * 32}
MINT = TokenMint(b"i" * 32)


class Scene:
    """One user with one grant for the account `demo`."""

    def __init__(self):
        self.kube = FakeKubernetes()
        self.now = time.time()
        self.used = []
        self.tables = {
            kind: FakeInformer(self.kube, kind.plural, project)
            for kind, project in (
                (GatewayGrant, project_grant),
                (GatewayOAuthClient, project_client),
                (GatewayAccount, project_account),
                (GatewayUser, project_user),
            )
        }
        reads = [ReadThrough(t, self.kube, kind.plural) for kind, t in self.tables.items()]
        self.verifier = TokenVerifier(
            *reads,
            MINT,
            PEPPERS,
            note_use=lambda *use: self.used.append(use),
            clock=lambda: self.now,
        )
        self.put_account()
        self.put_user()
        self.put("gatewayoauthclients", "client-a", clientName="A", redirectUris=["a:b"])
        self.token = MINT.mint("access", GRANT, 1)
        self.put_grant()

    def put(self, plural, name, **spec):
        self.kube.put(plural, {"metadata": {"name": name}, "spec": spec})

    def put_account(self, **spec):
        owner = {"name": "Ann", "email": "ann@example.com"}
        self.put("gatewayaccounts", "demo", displayName="Demo", owner=owner, **spec)

    def put_user(self, role="admin", **spec):
        roles = [{"accountName": "demo", "role": role}] if role else []
        spec = {"displayName": "Ann", "email": "ann@example.com", "memberships": roles, **spec}
        self.put("gatewayusers", "ann", **spec)

    def put_grant(self, generation=1, tokens=None, **spec):
        tokens = {1: self.token} if tokens is None else tokens
        self.put(
            "gatewaygrants",
            GRANT,
            userName="ann",
            accountName="demo",
            clientId="client_a",
            clientName="A",
            redirectHost="a:",
            scopes=["mcp:read", "mcp:tasks"],
            resource=AUDIENCE,
            expirationTime="2999-01-01T00:00:00Z",
            refreshToken={
                "digest": "0" * 64,
                "generation": generation,
                "expirationTime": "2999-01-01T00:00:00Z",
            },
            accessTokens=[
                {
                    "generation": number,
                    "digest": digest(token, PEPPERS[1]),
                    "scopes": ["mcp:read"],
                    "expirationTime": "2998-01-01T00:00:00Z",
                }
                for number, token in tokens.items()
            ],
            **spec,
        )

    async def verify(self, token=None, audience=AUDIENCE):
        return await self.verifier.verify_access_token(token or self.token, audience)

    async def is_refused(self, *given):
        with pytest.raises(Unauthenticated) as error:
            await self.verify(*given)
        assert error.value.code == "invalid_token"
        return True


@pytest.fixture
def scene():
    return Scene()


async def test_token_acts_for_its_user_in_its_account_as_a_member(scene):
    caller = await scene.verify()
    principal = caller.principal
    assert (principal.account.name, principal.role) == ("demo", "member")
    assert (principal.key.name, principal.creator.name) == (GRANT, "ann")
    assert (caller.client_id, caller.scopes) == ("client_a", {"mcp:read"})
    assert scene.used == [("demo", GRANT)]


async def test_viewer_stays_a_viewer(scene):
    scene.put_user("viewer")
    assert (await scene.verify()).principal.role == "viewer"


@pytest.mark.parametrize(
    "audience", ["https://gateway.example.com", AUDIENCE + "/", "HTTPS://mcp.example.com"]
)
async def test_token_of_another_audience_is_refused(scene, audience):
    assert await scene.is_refused(None, audience)


@pytest.mark.parametrize(
    "token",
    [
        MINT.mint("refresh", GRANT, 1),
        MINT.mint("access", GRANT, 1),
        TokenMint(b"j" * 32).mint("access", GRANT, 1),
        "é" * 80,
    ],
    ids=[
        "refresh token",
        "unknown access token",
        "access token of another secret",
        "no ASCII",
    ],
)
async def test_refresh_token_and_forgeries_are_refused(scene, token):
    assert await scene.is_refused(token)
    assert scene.used == []


async def test_forged_changed_or_expired_token_causes_no_read(scene):
    expired = MINT.mint("access", "grant-" + "b" * 26, 1, scene.now - 1)
    forged = "gwat_" + "b" * 26 + "_1_" + "x" * 48
    scene.kube.calls.clear()
    for token in (expired, forged, scene.token[:-1], scene.token + "\n"):
        assert await scene.is_refused(token)
    assert scene.kube.calls == []
    assert scene.used == []


@pytest.mark.parametrize(
    "end",
    [
        lambda scene: scene.put_user(suspended=True),
        lambda scene: scene.put_user(role=None),
        lambda scene: scene.put_account(suspended=True),
        lambda scene: scene.put_grant(tokens={}),
        lambda scene: scene.kube.remove("gatewayoauthclients", "client-a"),
        lambda scene: scene.kube.remove("gatewaygrants", GRANT),
        lambda scene: scene.kube.remove("gatewayusers", "ann"),
        lambda scene: scene.kube.remove("gatewayaccounts", "demo"),
    ],
    ids=[
        *("user suspended", "user without role", "account suspended", "token replaced"),
        *("client removed", "grant removed", "user removed", "account removed"),
    ],
)
async def test_token_ends_with_what_it_depends_on(scene, end):
    await scene.verify()
    end(scene)
    assert await scene.is_refused()


async def test_token_ends_with_its_time(scene):
    scene.now = 32_450_000_000.0
    assert await scene.is_refused()


async def test_token_that_is_newer_than_the_watch_is_read(scene):
    table = scene.tables[GatewayGrant]
    table.cut = True
    token = MINT.mint("access", GRANT, 2)
    scene.put_grant(generation=2, tokens={1: scene.token, 2: token})
    assert (await scene.verify(token)).scopes == {"mcp:read"}
    table.forget(GRANT)
    assert (await scene.verify(scene.token)).client_id == "client_a"


async def test_two_refreshes_within_a_second_of_a_replica_that_lags_are_both_read(scene):
    scene.tables[GatewayGrant].cut = True
    tokens = {1: scene.token}
    for generation in (2, 3):
        tokens[generation] = MINT.mint("access", GRANT, generation)
        scene.put_grant(generation, tokens)
        assert (await scene.verify(tokens[generation])).scopes == {"mcp:read"}


async def test_token_that_is_newer_than_a_restored_record_is_invalid(scene):
    assert await scene.is_refused(MINT.mint("access", GRANT, 2))


@pytest.mark.parametrize(
    ("kind", "name"),
    [(GatewayOAuthClient, "client-a"), (GatewayAccount, "demo"), (GatewayUser, "ann")],
)
async def test_replica_that_lags_reads_what_a_valid_token_names(scene, kind, name):
    scene.tables[kind].forget(name)
    assert (await scene.verify()).client_id == "client_a"


async def test_new_membership_counts_on_a_replica_that_lags(scene):
    scene.put_user(role=None)
    scene.tables[GatewayUser].cut = True
    scene.put_user()
    assert (await scene.verify()).principal.role == "member"


async def test_token_of_a_deleted_client_is_looked_up_once_a_second(scene):
    scene.kube.remove("gatewayoauthclients", "client-a")
    scene.kube.calls.clear()
    for _ in range(20):
        assert await scene.is_refused()
    assert len(scene.kube.calls) == 1


async def test_revocation_is_seen_while_the_watch_is_silent(scene):
    for table in scene.tables.values():
        table.cut, table.staleness = True, 10.0
    scene.kube.remove("gatewaygrants", GRANT)
    assert scene.tables[GatewayGrant].get(GRANT) is not None
    assert await scene.is_refused()


async def test_verification_is_unavailable_before_the_tables_are_read(scene):
    scene.tables[GatewayGrant].synced = False
    with pytest.raises(Unavailable):
        await scene.verify()


async def test_grant_that_is_gone_is_read_once_a_minute_however_many_tokens_it_had(scene):
    scene.kube.remove("gatewaygrants", GRANT)
    scene.kube.calls.clear()
    tokens = [MINT.mint("access", GRANT, 1) for _ in range(20)]
    assert all([await scene.is_refused(token) for token in tokens])
    assert len(scene.kube.calls) == 1
    scene.now += GONE_SECONDS
    scene.put_grant()
    assert (await scene.verify()).client_id == "client_a"


async def test_names_of_gone_grants_take_bounded_memory(scene):
    scene.verifier._gone = FairCache(4)
    for letter in "bcdefghij":
        assert await scene.is_refused(MINT.mint("access", "grant-" + letter * 26, 1))
    assert len(scene.verifier._gone) == 4


async def test_reads_of_unknown_grants_are_bounded(scene, monkeypatch):
    running, most, ends = 0, 0, asyncio.Event()

    async def read(*_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ends.wait()
        running -= 1
        raise ObjectNotFound

    monkeypatch.setattr(scene.kube, "get", read)
    names = [f"grant-{letter * 26}" for letter in "bcdefghijklmnopqrst"]
    calls = [asyncio.create_task(scene.is_refused(MINT.mint("access", n, 1))) for n in names]
    await asyncio.wait(calls, timeout=0.05)
    # a token that the table knows waits for none of them
    assert (await scene.verify()).client_id == "client_a"
    ends.set()
    assert all(await asyncio.gather(*calls))
    assert most == READS_AT_ONCE


def test_tokens_with_and_without_their_end_are_distinguished():
    ends = MINT.parse(MINT.mint("access", GRANT, 7, 1_795_262_407.2))
    assert (ends.grant, ends.generation, ends.expires_at) == (GRANT, 7, 1_795_262_408)
    plain = MINT.parse(MINT.mint("access", GRANT, 7))
    assert (plain.grant, plain.generation, plain.expires_at) == (GRANT, 7, math.inf)
    text = MINT.mint("access", GRANT, 7, 1_795_262_407)
    assert MINT.parse(text.replace("x1795262407", "x1995262407")) is None
