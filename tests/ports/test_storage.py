"""What `ports.storage` and `ports.parts` promise, asked of the fakes and of Redis alike."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from gateway_core.files.quota_counters import PartCaps, PartLedger, Pool, StorageLedger, Used
from gateway_core.redis.link import CountersStale
from tests.fakes.storage import FakeParts, FakeStorage
from tests.ports.counters_stores import name_account
from tests.servers.server import RedisServer

POOL: Pool = "files"
LIMIT = 1000


@dataclass
class Stores:
    """Both ledgers, on one store that can be emptied."""

    storage: StorageLedger
    parts: PartLedger
    lose: Callable[[], object]


@pytest.fixture(params=["fake", "redis"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    if request.param == "fake":
        fake, parts = FakeStorage(), FakeParts()
        yield Stores(fake, parts, lambda: (fake.lose(), parts.lose()))
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    direct = Redis(port=server.port)
    storage, counted = StorageLedger(server.url), PartLedger(server.url)
    yield Stores(storage, counted, direct.flushall)
    await storage.close()
    await counted.close()
    direct.close()


@pytest.fixture
def ledger(stores: Stores) -> StorageLedger:
    return stores.storage


@pytest.fixture
async def account(ledger: StorageLedger) -> str:
    """One whose pool of files is known and empty."""
    name = name_account()
    await rebuild(ledger, name, {})
    return name


async def rebuild(ledger: StorageLedger, account: str, members: dict[str, int]) -> None:
    token = await ledger.begin_rebuild(account, POOL)
    assert token is not None
    assert await ledger.finish_rebuild(account, POOL, token, members)


async def list_members(ledger: StorageLedger, account: str) -> dict[str, int]:
    return {claim.member: claim.bytes for claim in await ledger.list_claims(account, POOL, 0)}


class TestClaims:
    async def test_limit_is_met_to_the_byte(self, ledger: StorageLedger, account: str) -> None:
        assert await ledger.claim(account, POOL, "a", LIMIT - 1, LIMIT)
        assert not await ledger.claim(account, POOL, "b", 2, LIMIT)
        assert await ledger.claim(account, POOL, "b", 1, LIMIT)
        assert (await ledger.read_used(account, POOL)).bytes == LIMIT

    async def test_pool_has_so_many_members(self, ledger: StorageLedger, account: str) -> None:
        for member in ("a", "b", "a"):
            assert await ledger.claim(account, POOL, member, 0, LIMIT, 2)
        assert not await ledger.claim(account, POOL, "c", 0, LIMIT, 2)
        assert await ledger.read_used(account, POOL) == Used(0, 2)
        await ledger.release(account, POOL, "a")
        assert await ledger.claim(account, POOL, "c", 0, LIMIT, 2)
        assert await ledger.claim(account, POOL, "d", 0, LIMIT)
        assert not await ledger.claim(account, POOL, "e", 0, LIMIT, 0)

    async def test_repeated_claim_counts_once(self, ledger: StorageLedger, account: str) -> None:
        for _ in range(2):
            assert await ledger.claim(account, POOL, "a", 600, LIMIT)
        assert await ledger.claim(account, POOL, "b", 300, LIMIT)
        for _ in range(2):
            await ledger.release(account, POOL, "a")
        assert await list_members(ledger, account) == {"b": 300}
        assert (await ledger.read_used(account, POOL)).bytes == 300

    async def test_pools_and_accounts_are_apart(self, ledger: StorageLedger, account: str) -> None:
        other = name_account()
        await rebuild(ledger, other, {"a": 5})
        await ledger.claim(account, POOL, "a", 7, LIMIT)
        with pytest.raises(CountersStale):
            await ledger.read_used(account, "temporary")
        assert (await ledger.read_used(other, POOL)).bytes == 5

    async def test_concurrent_claims_pass_as_far_as_they_fit(
        self, ledger: StorageLedger, account: str
    ) -> None:
        answers = await asyncio.gather(
            *(ledger.claim(account, POOL, f"m{n}", 30, LIMIT) for n in range(50))
        )
        assert sum(answers) == LIMIT // 30
        assert (await ledger.read_used(account, POOL)).bytes == LIMIT // 30 * 30

    async def test_upload_becomes_its_file_without_counting_twice(
        self, ledger: StorageLedger, account: str
    ) -> None:
        await ledger.claim(account, POOL, "upload", 400, LIMIT)
        for _ in range(2):
            await ledger.move(account, POOL, "upload", "file")
        assert await list_members(ledger, account) == {"file": 400}
        await ledger.claim(account, POOL, "upload", 100, LIMIT)
        await ledger.move(account, POOL, "upload", "file")
        assert await list_members(ledger, account) == {"file": 400}

    async def test_claims_tell_their_age(self, ledger: StorageLedger, account: str) -> None:
        await ledger.claim(account, POOL, "a", 1, LIMIT)
        assert await ledger.list_claims(account, POOL, 60) == []
        [claim] = await ledger.list_claims(account, POOL, 0)
        assert 0 <= claim.age < 60

    async def test_sizes_that_cannot_be_counted_are_refused(
        self, ledger: StorageLedger, account: str
    ) -> None:
        assert await ledger.claim(account, POOL, "a", 2**53 - 1, 2**53 - 1)
        assert not await ledger.claim(account, POOL, "b", 1, 2**53 - 1)
        assert (await ledger.read_used(account, POOL)).bytes == 2**53 - 1


class TestRebuild:
    async def test_loss_is_reported_until_it_is_made_good(
        self, stores: Stores, account: str
    ) -> None:
        ledger = stores.storage
        await ledger.claim(account, POOL, "a", 5, LIMIT)
        stores.lose()
        for refused in (
            ledger.claim(account, POOL, "b", 1, LIMIT),
            ledger.read_used(account, POOL),
            ledger.list_claims(account, POOL, 0),
        ):
            with pytest.raises(CountersStale):
                await refused
        await rebuild(ledger, account, {"a": 5})
        assert await list_members(ledger, account) == {"a": 5}
        assert await ledger.begin_rebuild(account, POOL) is None

    async def test_only_one_rebuild_runs_and_a_lapsed_one_changes_nothing(
        self, stores: Stores, account: str
    ) -> None:
        ledger = stores.storage
        await ledger.mark_stale(account, POOL)
        token = await ledger.begin_rebuild(account, POOL)
        assert token is not None
        assert await ledger.begin_rebuild(account, POOL) is None
        await ledger.abandon_rebuild(account, POOL, "another")
        assert await ledger.begin_rebuild(account, POOL) is None
        await ledger.abandon_rebuild(account, POOL, token)
        await rebuild(ledger, account, {"a": 5})
        assert not await ledger.finish_rebuild(account, POOL, token, {})
        await ledger.mark_stale(account, POOL)
        token = await ledger.begin_rebuild(account, POOL)
        assert token is not None
        stores.lose()
        assert not await ledger.finish_rebuild(account, POOL, token, {"a": 5})
        with pytest.raises(CountersStale):
            await ledger.read_used(account, POOL)

    async def test_lapsed_or_lost_rebuild_cannot_be_renewed(
        self, stores: Stores, account: str
    ) -> None:
        ledger = stores.storage
        await ledger.mark_stale(account, POOL)
        token = await ledger.begin_rebuild(account, POOL)
        assert token is not None
        assert await ledger.renew_rebuild(account, POOL, token)
        assert not await ledger.renew_rebuild(account, POOL, "another")
        assert await ledger.confirm(account, POOL, "a", 5, LIMIT)
        assert await ledger.renew_rebuild(account, POOL, token)
        assert await ledger.finish_rebuild(account, POOL, token, {})
        assert await list_members(ledger, account) == {"a": 5}
        assert not await ledger.renew_rebuild(account, POOL, token)
        stores.lose()
        assert not await ledger.renew_rebuild(account, POOL, token)
        assert await ledger.begin_rebuild(account, POOL) is not None

    async def test_claims_during_a_rebuild_are_not_lost(self, stores: Stores, account: str) -> None:
        ledger = stores.storage
        stores.lose()
        token = await ledger.begin_rebuild(account, POOL)
        assert token is not None
        # made after the record was read, moved before and after it, deleted after it
        assert await ledger.confirm(account, POOL, "made", 1, LIMIT)
        await ledger.move(account, POOL, "read-upload", "read-file")
        assert await ledger.confirm(account, POOL, "new-upload", 20, LIMIT)
        await ledger.move(account, POOL, "new-upload", "new-file")
        await ledger.move(account, POOL, "both-upload", "both-file")
        await ledger.release(account, POOL, "deleted")
        await ledger.move(account, POOL, "short-upload", "short-file")
        await ledger.release(account, POOL, "short-file")
        read = {
            "kept": 300,
            "read-upload": 4000,
            "both-file": 50000,
            "deleted": 600000,
            "short-upload": 7000000,
        }
        assert await ledger.finish_rebuild(account, POOL, token, read)
        members = {"kept": 300, "made": 1, "read-file": 4000, "new-file": 20, "both-file": 50000}
        assert await list_members(ledger, account) == members
        assert (await ledger.read_used(account, POOL)).bytes == sum(members.values())

    async def test_claim_that_was_lost_is_taken_again_where_it_fits(
        self, stores: Stores, account: str
    ) -> None:
        ledger = stores.storage
        await ledger.claim(account, POOL, "a", 600, LIMIT)
        stores.lose()
        # nobody reads the record yet: whoever does will find the object there
        assert await ledger.confirm(account, POOL, "a", 600, LIMIT)
        await rebuild(ledger, account, {})
        assert await ledger.confirm(account, POOL, "a", 600, LIMIT)
        assert (await ledger.read_used(account, POOL)).bytes == 600
        assert not await ledger.confirm(account, POOL, "b", 600, LIMIT)
        assert await list_members(ledger, account) == {"a": 600}

    async def test_claim_of_other_bytes_under_the_name_is_set_right(
        self, stores: Stores, account: str
    ) -> None:
        ledger = stores.storage
        assert await ledger.claim(account, POOL, "a", 10, LIMIT)
        assert await ledger.claim(account, POOL, "a", 600, LIMIT)
        assert (await ledger.read_used(account, POOL)).bytes == 10
        assert await ledger.confirm(account, POOL, "a", 600, LIMIT)
        assert await ledger.claim(account, POOL, "b", LIMIT - 600, LIMIT)
        assert not await ledger.confirm(account, POOL, "a", 601, LIMIT)
        assert await list_members(ledger, account) == {"a": 600, "b": LIMIT - 600}
        assert await ledger.confirm(account, POOL, "a", 5, LIMIT)
        assert (await ledger.read_used(account, POOL)).bytes == LIMIT - 595

    async def test_thousands_of_members(self, ledger: StorageLedger) -> None:
        name, members = name_account(), {f"file-{n}": n for n in range(2500)}
        await rebuild(ledger, name, members)
        assert await list_members(ledger, name) == members


class TestVersions:
    async def test_figures_are_known_once_all_files_were_listed(
        self, stores: Stores, account: str
    ) -> None:
        ledger = stores.storage
        assert await ledger.read_version(account) is None
        await ledger.note_version(account, 70)
        assert await ledger.read_version(account) is None
        await ledger.establish_versions(account, 50)
        assert await ledger.read_version(account) == 70
        for version in (90, 80):
            await ledger.note_version(account, version)
        assert await ledger.read_version(account) == 90
        stores.lose()
        await ledger.note_version(account, 91)
        assert await ledger.read_version(account) is None


class TestParts:
    CAPS = PartCaps(parts=3, bytes=100)

    async def test_caps_are_met_to_the_byte_and_a_part_counts_once(self, stores: Stores) -> None:
        parts, name = stores.parts, name_account()
        with pytest.raises(CountersStale):
            await parts.claim(name, "u", "a", 1, self.CAPS)
        await parts.establish(name, "u", {"a": 60})
        assert not await parts.claim(name, "u", "b", 41, self.CAPS)
        assert await parts.claim(name, "u", "b", 40, self.CAPS)
        assert await parts.claim(name, "u", "b", 30, self.CAPS)
        assert await parts.claim(name, "u", "c", 10, self.CAPS)
        assert not await parts.claim(name, "u", "d", 0, self.CAPS)
        for _ in range(2):
            await parts.release(name, "u", "a")
        assert await parts.claim(name, "u", "d", 60, self.CAPS)
        assert not await parts.claim(name, "u", "d", 61, self.CAPS)

    async def test_second_establishment_keeps_claims_made_in_between(self, stores: Stores) -> None:
        parts, name = stores.parts, name_account()
        await parts.establish(name, "u", {})
        assert await parts.claim(name, "u", "a", 60, self.CAPS)
        await parts.establish(name, "u", {"b": 30})
        assert not await parts.claim(name, "u", "c", 11, self.CAPS)
        assert await parts.claim(name, "u", "c", 10, self.CAPS)

    async def test_forgotten_or_lost_parts_are_reported(self, stores: Stores) -> None:
        parts, name = stores.parts, name_account()
        await parts.establish(name, "u", {})
        await parts.forget(name, "u")
        with pytest.raises(CountersStale):
            await parts.claim(name, "u", "a", 1, self.CAPS)
        await parts.establish(name, "u", {})
        stores.lose()
        await parts.release(name, "u", "a")
        with pytest.raises(CountersStale):
            await parts.claim(name, "u", "a", 1, self.CAPS)


class TestPendingUploads:
    async def test_account_has_at_most_so_many_at_once(self, stores: Stores) -> None:
        parts, name, bound = stores.parts, name_account(), {"seconds": 60, "most": 2}
        assert [await parts.begin(name, upload, **bound) for upload in "aab"] == [True] * 3
        assert not await parts.begin(name, "c", **bound)
        assert await parts.begin(name, "a", **bound)
        assert await parts.begin(name_account(), "c", **bound)
        for _ in range(2):
            await parts.forget(name, "a")
        assert await parts.begin(name, "c", **bound)
        assert not await parts.begin(name, "a", **bound)

    async def test_pending_upload_counts_until_its_expiry(self, stores: Stores) -> None:
        parts, name = stores.parts, name_account()
        assert await parts.begin(name, "a", seconds=0, most=1)
        assert await parts.begin(name, "b", seconds=60, most=1)
        assert not await parts.begin(name, "c", seconds=60, most=1)
        stores.lose()
        assert await parts.begin(name, "c", seconds=60, most=1)


Step = tuple[str, str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["claim", "confirm", "release", "move", "lose", "begin", "renew", "finish"]
        ),
        st.sampled_from("abcd"),
        st.integers(0, 600),
    ),
    max_size=30,
)


@given(steps=STEPS)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_redis_and_the_fake_answer_alike(
    redis_server: RedisServer, steps: list[Step]
) -> None:
    """The fake is a model of what the scripts do, told steps in any order."""
    account, real, fake = name_account(), StorageLedger(redis_server.url), FakeStorage()
    tokens: list[str | None] = [None, None]

    async def take(index: int, ledger: StorageLedger, step: Step) -> object:
        action, name, size = step
        try:
            if action == "claim":
                return await ledger.claim(account, POOL, name, size, LIMIT)
            if action == "confirm":
                return await ledger.confirm(account, POOL, name, size, LIMIT)
            if action == "release":
                await ledger.release(account, POOL, name)
            if action == "move":
                # only ever to what is no upload itself
                await ledger.move(account, POOL, name, f"file-{name}")
            if action == "lose":
                await ledger.mark_stale(account, POOL)
            if action == "begin":
                begun = await ledger.begin_rebuild(account, POOL)
                tokens[index] = begun or tokens[index]
                return begun is not None
            if action == "renew":
                return await ledger.renew_rebuild(account, POOL, tokens[index] or "none")
            if action == "finish":
                members = {name: size, "other": 3}
                token = tokens[index] or "none"
                return await ledger.finish_rebuild(account, POOL, token, members)
        except CountersStale:
            return "stale"
        try:
            return await ledger.read_used(account, POOL), await list_members(ledger, account)
        except CountersStale:
            return "stale"

    try:
        for step in [("begin", "a", 0), ("finish", "a", 5), *steps]:
            assert await take(0, real, step) == await take(1, fake, step)
    finally:
        await real.close()


class TestFaults:
    async def test_rebuild_lives_thirty_seconds_from_its_last_renewal(
        self, redis_server: RedisServer
    ) -> None:
        name, ledger = name_account(), StorageLedger(redis_server.url)
        token = await ledger.begin_rebuild(name, POOL)
        assert token is not None
        key = f"gw:{{default/{name}}}:stored:{POOL}:rebuild"
        with Redis(port=redis_server.port) as direct:
            direct.expire(key, 5)
            assert await ledger.renew_rebuild(name, POOL, token)
            assert 25 < int(direct.ttl(key)) <= 30  # type: ignore[arg-type]
            direct.expire(key, 0)
        assert not await ledger.renew_rebuild(name, POOL, token)
        assert await ledger.begin_rebuild(name, POOL) is not None
        await ledger.close()

    async def test_parts_are_kept_for_minutes_only(self, redis_server: RedisServer) -> None:
        name, parts = name_account(), PartLedger(redis_server.url)
        caps = PartCaps(3, 100)
        with Redis(port=redis_server.port) as direct:
            await parts.establish(name, "u", {})
            assert await parts.claim(name, "u", "a", 1, caps)
            assert 0 < direct.ttl(f"gw:{{default/{name}}}:parts:u") <= 600
            await parts.release(name, "u", "a")
            assert 0 < direct.ttl(f"gw:{{default/{name}}}:parts:u") <= 600
        await parts.close()

    async def test_part_that_is_evicted_shows_as_a_loss_of_all(
        self, redis_server: RedisServer
    ) -> None:
        name, ledger = name_account(), StorageLedger(redis_server.url)
        with Redis(port=redis_server.port) as direct:
            for key in ("", ":members"):
                token = await ledger.begin_rebuild(name, POOL)
                assert token is not None
                assert await ledger.finish_rebuild(name, POOL, token, {"a": 1})
                assert direct.delete(f"gw:{{default/{name}}}:stored:files{key}") == 1
                with pytest.raises(CountersStale):
                    await ledger.claim(name, POOL, "b", 1, LIMIT)
        await ledger.close()
