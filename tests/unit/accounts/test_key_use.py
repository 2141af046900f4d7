"""Last use of a key: any authenticated request counts, at most 60 s late (contract §9.0)."""

from gateway_core.accounts.key_use import REMEMBERED_SECONDS, REPORTS_TO_ALL, KeyUse
from tests.fakes.counters import FakeCounters
from tests.unit.apiserver.gateway import Gateway, body
from tests.unit.apiserver.management import Office


class Clock:
    """Unix seconds, set by a test."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def read(office: Office, wire_id: str) -> str | None:
    shown = await office.show(f"/keys/{wire_id}")
    found: str | None = shown["last_used_at"]
    return found


async def test_authenticated_request_is_a_use() -> None:
    office, clock = Office(Gateway()), Clock()
    gateway = office.gateway
    gateway.clock = clock
    made = await office.make()
    assert await read(office, made["id"]) is None
    calls = [
        gateway.get("/api/v1/me", key=made["secret"]),
        gateway.create(key=made["secret"]),
        gateway.create(body(prompt=""), key=made["secret"]),
        gateway.get("/v1/files", key=made["secret"]),
        gateway.get("/api/v1/management/keys", key=made["secret"]),
    ]
    for n, asked in enumerate(calls):
        clock.now = 1_800_000_000.0 + 60 * n
        await asked
        assert await read(office, made["id"]) == f"2027-01-15T08:{n:02}:00Z"
    listed = (await office.show("/keys"))["data"]
    assert [key["last_used_at"] for key in listed if key["id"] == made["id"]] == [
        "2027-01-15T08:04:00Z"
    ]


async def test_refused_credential_is_no_use() -> None:
    office = Office(Gateway())
    made = await office.make(disabled=True)
    assert (await office.gateway.create(key=made["secret"])).status == 401
    assert await read(office, made["id"]) is None


async def test_use_reported_by_a_replica_is_shared_and_outlives_redis() -> None:
    counters, clock = FakeCounters(), Clock()
    one, other = KeyUse(counters, clock), KeyUse(counters, clock)
    one.note("demo", "key-a")
    assert await other.find("demo", ["key-a"]) == {}
    await one.report()
    assert await other.find("demo", ["key-a", "key-b"]) == {"key-a": clock.now}
    assert await other.find("guest", ["key-a"]) == {}
    counters.lose()
    clock.now += 60
    for _ in range(REPORTS_TO_ALL):
        await one.report()
    assert await other.find("demo", ["key-a"]) == {"key-a": clock.now - 60}


async def test_reports_tell_only_what_is_new_between_whole_ones() -> None:
    counters, clock = FakeCounters(), Clock()
    use = KeyUse(counters, clock)
    use.note("demo", "key-a")
    clock.now += 1
    await use.report()
    counters.lose()
    clock.now += 20
    use.note("demo", "key-b")
    await use.report()
    assert set(await counters.read_used("demo")) == {"key-b"}


async def test_use_that_the_counters_do_not_take_is_reported_again() -> None:
    counters, clock = FakeCounters(), Clock()
    use = KeyUse(counters, clock)
    await use.report()
    use.note("demo", "key-a")
    noted = clock.now
    counters.away = True
    clock.now += 20
    await use.report()
    assert await use.find("demo", ["key-a"]) == {"key-a": noted}
    counters.away = False
    clock.now += 20
    await use.report()
    assert await counters.read_used("demo") == {"key-a": noted}


async def test_memory_is_that_of_the_keys_used_within_the_hour() -> None:
    counters, clock = FakeCounters(), Clock()
    use = KeyUse(counters, clock)
    for n in range(100):
        use.note("demo", f"key-{n}")
    clock.now += REMEMBERED_SECONDS + 1
    use.note("demo", "key-new")
    await use.report()
    counters.away = True
    assert set(await use.find("demo", [f"key-{n}" for n in range(100)])) == set()
    assert set(await use.find("demo", ["key-new"])) == {"key-new"}


async def test_later_use_in_the_status_is_shown() -> None:
    office, clock = Office(Gateway()), Clock()
    office.gateway.clock = clock
    made = await office.make()
    await office.gateway.get("/api/v1/me", key=made["secret"])
    status = {"lastUsedTime": "2027-01-15T08:00:01Z"}
    office.gateway.kube.put("gatewaykeys", {**office.read(made["id"]), "status": status})
    assert await read(office, made["id"]) == "2027-01-15T08:00:01Z"
    office.gateway.counters.away = True
    assert await read(office, made["id"]) == "2027-01-15T08:00:01Z"
