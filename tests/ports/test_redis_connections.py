"""The ways to a Redis: Sentinels, TLS, users of access control lists, IPv6."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pydantic import ValidationError
from redis import Redis, RedisError

from gateway_cli.local.certificates import write_cluster_keys
from gateway_core.billing.counters import AdmissionCall, Hold, Ledger
from gateway_core.billing.redis_counters import Counters
from gateway_core.redis import batches, link
from gateway_core.redis.connection import RUN_ID, connect
from gateway_core.redis.link import COMMAND_SECONDS, CountersUnavailable
from gateway_core.redis.options import RedisOptions, RedisSettings
from gateway_core.redis.transient import TransientStore
from tests.ports.counters_stores import rebuild
from tests.servers.sentinel import PASSWORD, SENTINEL_PASSWORD, SentinelGroup
from tests.servers.server import RedisServer

ACCOUNT, DAY = "demo", "2026-11-21"
CALL = AdmissionCall(ACCOUNT, 300, Hold("c", 1), 100)
RECOVERY_SECONDS = 30.0
RULES = "~gw:* resetchannels &gw:* +@all -@admin -@dangerous +info"
"""What a user of the gateway may do, as docs/operations/hardening.md says."""


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    with SentinelGroup() as running:
        yield running


@contextlib.asynccontextmanager
async def open_store(server: RedisOptions | str) -> AsyncIterator[TransientStore]:
    store = TransientStore(server)
    yield store
    await store.close()


async def check(server: RedisOptions | str) -> None:
    """A value and a script pass."""
    async with open_store(server) as store:
        await store.put("a", b"value", 60)
        await store.put_in("group", "b", b"value", 60, most=2, group_seconds=60)
        assert await store.read("a") == b"value"


@pytest.mark.parametrize("way", ["killed", "halted"])
async def test_another_master_takes_over_within_ten_seconds_and_is_rebuilt(
    group: SentinelGroup, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (link, batches):
        monkeypatch.setattr(module, "COMMAND_SECONDS", COMMAND_SECONDS)
    counters = Counters(group.options)
    await rebuild(counters, ACCOUNT, Ledger(12, {DAY: 5}, {"a": 3}))
    before = await counters.read_spending(ACCOUNT, DAY)
    former = group.find_master()
    if way == "killed":
        former.kill()
    else:
        former.stop()
    with pytest.raises(CountersUnavailable):
        await counters.admit(CALL)
    await group.wait_for_another(former)
    began = time.monotonic()
    while True:
        with contextlib.suppress(CountersUnavailable):
            answer = await counters.admit(CALL)
            break
    assert time.monotonic() - began < RECOVERY_SECONDS
    # the replica may lack the last writes: its own run is another one
    assert answer.stale
    await rebuild(counters, ACCOUNT, Ledger(12, {DAY: 5}, {"a": 3}))
    if way == "halted":
        former.go_on()
        # it comes back as a master, until a Sentinel has told it otherwise
        for _ in range(100):
            assert await counters.read_spending(ACCOUNT, DAY) == before
            await asyncio.sleep(0.01)
    await counters.close()


async def test_sentinel_that_is_silent_is_passed_over(group: SentinelGroup) -> None:
    group.sentinels[0].stop()
    try:
        await check(group.options)
    finally:
        group.sentinels[0].go_on()


@pytest.mark.parametrize("wrong", ["password", "sentinel_password"])
async def test_wrong_password_is_an_outage_that_does_not_tell_it(
    group: SentinelGroup, wrong: str
) -> None:
    options = replace(group.options, **{wrong: "a wrong secret"})
    async with open_store(options) as store:
        with pytest.raises(CountersUnavailable) as refused:
            await store.read("a")
    told = f"{options!r} {refused.value} {refused.value.__cause__!r}"
    for secret in ("a wrong secret", PASSWORD, SENTINEL_PASSWORD):
        assert secret not in told


async def test_user_of_an_access_control_list_may_do_what_the_gateway_does() -> None:
    with RedisServer(["--requirepass", "admin"]) as server:
        with Redis(port=server.port, password="admin") as direct:
            direct.execute_command("ACL", "SETUSER", "gateway", "on", ">a b:c", *RULES.split())
        options = RedisOptions(server.url, username="gateway", password="a b:c")
        await check(options)
        counters = Counters(options)
        assert await counters.prepare(5)
        await rebuild(counters, ACCOUNT, Ledger(12, {DAY: 5}, {"a": 3}))
        assert (await counters.admit(CALL)).held
        assert await counters.list_accounts() == [ACCOUNT]
        await counters.note_used(ACCOUNT, {"key": 1.0})
        await counters.forget_account(ACCOUNT)
        await counters.close()
        async with open_store(options) as store:
            received = asyncio.Event()
            listening = asyncio.create_task(store.listen("gw:news", lambda _: received.set()))
            with Redis(port=server.port, password="admin") as direct:
                while not received.is_set():
                    direct.publish("gw:news", "message")
                    await asyncio.sleep(0.01)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        with pytest.raises(CountersUnavailable):
            await check(replace(options, password="another"))


async def test_server_behind_a_socket_of_the_machine() -> None:
    with TemporaryDirectory() as folder, RedisServer(["--unixsocket", f"{folder}/redis.sock"]):
        await check(f"unix://{folder}/redis.sock?db=0")


async def test_command_for_one_run_of_the_server_is_not_sent_to_another() -> None:
    with RedisServer() as server:
        client = connect(server.url, 1)
        script = client.register_script("return ARGV[1]")
        for _ in range(2):
            with Redis(port=server.port) as direct:
                run_id = direct.info("server")["run_id"].encode()
            assert await script((), (RUN_ID,)) == run_id
            connection = await client.connection_pool.get_connection()
            packed = connection.pack_command("EVAL", "return ARGV[1]", 0, RUN_ID)
            assert run_id in packed[0]
            await connection.disconnect()
            await asyncio.to_thread(server.restart)
            with pytest.raises(RedisError, match="closed"):
                await connection.send_packed_command(packed)
            await client.connection_pool.release(connection)
        await client.aclose()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_server_at_an_address_of_ipv6() -> None:
    with RedisServer(host="::1") as server:
        assert "[::1]" in server.url
        await check(server.url)


async def test_certificates_of_both_sides_are_checked(tmp_path: Path) -> None:
    keys, others = (write_cluster_keys(tmp_path / name) for name in ("ours", "others"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=keys.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(keys.certificate, keys.key)
    with RedisServer() as server:
        async with terminate_tls(server.port, context, "127.0.0.1", "127.0.0.2") as ports:
            named, unnamed = (
                RedisOptions(
                    f"rediss://{host}:{port}/0",
                    ca_file=str(keys.certificate),
                    certificate_file=str(keys.certificate),
                    key_file=str(keys.key),
                )
                for host, port in ports.items()
            )
            await check(named)
            for refused in (
                unnamed,
                replace(named, ca_file=str(others.certificate)),
                replace(named, certificate_file="", key_file=""),
                replace(named, certificate_file=str(others.certificate), key_file=str(others.key)),
            ):
                with pytest.raises(CountersUnavailable):
                    await check(refused)


@pytest.mark.skipif(not RedisServer.has_tls(), reason="this build of Redis has no TLS")
async def test_sentinels_and_master_are_called_with_tls(tmp_path: Path) -> None:
    keys = write_cluster_keys(tmp_path / "ours")
    with SentinelGroup(keys) as group:
        await check(group.options)
        former = group.find_master()
        former.kill()
        await group.wait_for_another(former)
        await check(group.options)
        for refused in (
            replace(group.options, certificate_file="", key_file=""),
            replace(group.options, ca_file=""),
            replace(group.options, url="redis:///0"),
        ):
            with pytest.raises(CountersUnavailable):
                await check(refused)


@contextlib.asynccontextmanager
async def terminate_tls(
    target: int, context: ssl.SSLContext, *hosts: str
) -> AsyncIterator[dict[str, int]]:
    """Servers that end TLS and pass the bytes on, by host; not all builds of Redis can."""
    pumps = set[asyncio.Task[None]]()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
        for pair in ((reader, inner_writer), (inner_reader, writer)):
            pumps.add(asyncio.create_task(pump(*pair)))

    servers = [await asyncio.start_server(serve, host, 0, ssl=context) for host in hosts]
    yield dict(server.sockets[0].getsockname() for server in servers)
    for server in servers:
        server.close()
    for task in pumps:
        task.cancel()
    await asyncio.gather(*pumps, return_exceptions=True)


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_REDIS_SENTINELS", "one:26379, [fd00::2]:26380")
    monkeypatch.setenv("GATEWAY_REDIS_PASSWORD", "a secret")
    settings = RedisSettings()
    assert settings.redis.sentinels == ("one:26379", "[fd00::2]:26380")
    assert settings.redis.password == "a secret"
    assert "a secret" not in f"{settings!r} {settings.redis!r}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("URL", "redis://:a#secret@host:6379/0"),
        ("URL", "http://:secret@host"),
        ("SENTINELS", "one"),
        ("SENTINELS", "fd00::2:26379"),
        ("KEY_FILE", "/etc/tls.key"),
    ],
)
def test_unusable_settings_are_refused_without_a_secret(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"GATEWAY_REDIS_{name}", value)
    with pytest.raises(ValidationError) as refused:
        RedisSettings()
    [error] = refused.value.errors()
    assert name.lower() in f"{error['loc']} {error['msg']}"
    assert "secret" not in str(refused.value)
