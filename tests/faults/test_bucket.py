"""F12: an S3 server that is overloaded, cuts answers off and loses them (I5, I6, I9).

Files, Uploads with parts of a few bytes (S3 itself joins none below 5 MiB), and tasks' videos.
Afterwards every acknowledged byte is there, and no other object is in the bucket.
"""

import asyncio
import secrets
from contextlib import ExitStack

import pytest

from gateway_core.api.file import GatewayFile
from gateway_core.api.upload import GatewayUpload
from tests.crash.storage import SOON, Uploading, check_video, create_file
from tests.servers.s3 import S3Faults, S3Server, open_bucket
from tests.servers.stored import Stored
from tests.servers.tenants import open_tenant
from tests.servers.world import World, wait_for
from tests.shares import share

pytestmark = [pytest.mark.timeout(600)]

TRIALS = 25
"""Of each fault."""
PREFIX = "gateway/faults"
PIECES = (b"first" * 1000, b"x", b"third" * 500)


def is_read(call):
    return call.method == "GET" and "list-type" not in call.query


def is_write(call):
    return call.method in ("PUT", "POST") and "delete" not in call.query


def slow_down(faults):
    """Every second call is told to slow down, up to twelve of them."""
    calls = iter(range(10**9))
    return faults.expect(lambda _: next(calls) % 2 == 0, times=12, slow_down=True)


def truncate(faults):
    """The next six reads break off after a few bytes."""
    return faults.expect(is_read, times=6, cut_after=7)


def lose_answers(faults):
    """Six writes are done, and their answers lost."""
    calls = iter(range(10**9))
    return faults.expect(
        lambda call: is_write(call) and next(calls) % 2 == 0, times=6, lose_answer=True
    )


def behave(faults):
    """No fault: parts that S3 would not join become one File all the same."""
    return faults.expect(lambda _: False)


FAULTS = {
    "503 SlowDown": slow_down,
    "truncated GET": truncate,
    "PUT done, answer lost": lose_answers,
    "parts below 5 MiB": behave,
}


@pytest.fixture(scope="module")
def gateway(control_plane):
    """A gateway on a bucket behind a proxy with faults, the server itself, and the proxy."""
    with ExitStack() as stack:
        server = stack.enter_context(S3Server())
        bucket = stack.enter_context(S3Faults(server.url))
        settings = server.settings(prefix=PREFIX, endpoint=bucket.url)
        users = {"api": settings, "operator": {**settings, **SOON}, "media": settings}
        yield stack.enter_context(World(control_plane, extra_env=users)), server, bucket


@pytest.mark.parametrize("fault", FAULTS)
async def test_faults_of_the_bucket_lose_and_leave_no_byte(gateway, tally, fault):
    world, server, faults = gateway
    told = tally("F12", f"S3: {fault}")
    with open_bucket(server, prefix=PREFIX) as store:
        async with open_tenant(world) as client, Stored(world, client.account, store) as stored:
            await client.simulate({"behaviour": "seconds", "seconds": "0.2"})
            expected: dict[str, bytes] = {}
            for number in range(share(TRIALS)):
                async with told.trial(client):
                    laid = FAULTS[fault](faults)
                    before = len(faults.calls)
                    data = secrets.token_bytes(3000)
                    done, name, task = await asyncio.gather(
                        Uploading(client).upload(PIECES),
                        create_file(client, data),
                        client.create_surely(f"bucket-{fault}-{number}", duration_seconds=3),
                    )
                    expected[name] = data
                    expected[done["file"]["id"]] = b"".join(PIECES)
                    await check_video(client, task)
                    for file in list(expected)[-2:]:
                        assert await read(client, file) == expected[file], "I9"
                    assert len(faults.calls) > before
                    assert laid.times < 12, "no call met the fault"
                    laid.times = 0
                    gone = name if number % 2 else done["file"]["id"]
                    answer = await client.request("DELETE", f"/v1/files/{gone}")
                    assert answer.status == 200, answer.raw
                    del expected[gone]
            async with told.trial(client, count=0):
                await check_stored(stored, server, expected)
    told.check()


async def read(client, file: str) -> bytes:
    """The content as a client gets it: one that breaks off, or is a 503, is asked for again."""

    async def ask() -> bytes | None:
        try:
            answer = await client.request("GET", f"/v1/files/{file}/content")
        except ConnectionError:
            return None
        assert answer.status in (200, 503), answer.raw
        return answer.raw if answer.status == 200 else None

    content: bytes = await wait_for(ask, what="the content")
    return content


async def check_stored(stored: Stored, server: S3Server, expected: dict[str, bytes]) -> None:
    """One File for each Upload, the ledger is their sum, and no other object is stored (I5, I6)."""

    async def is_settled() -> bool:
        files = await stored.list_all(GatewayFile.plural)
        uploads = await stored.list_all(GatewayUpload.plural)
        return {obj["metadata"]["name"] for obj in files} == set(expected) and all(
            (obj.get("status") or {}).get("work") == "Settled" for obj in uploads
        )

    async def has_no_orphan() -> bool:
        files = await stored.list_all(GatewayFile.plural)
        keys = {s["key"] for obj in files for s in obj["spec"]["request"]["segments"]}
        return set(await stored.list_keys()) == keys and server.list_uploads() == []

    async def is_counted() -> bool:
        return await stored.read_used() == sum(map(len, expected.values()))

    await wait_for(is_settled, what="I5: the files, and every upload settled", seconds=60)
    await wait_for(has_no_orphan, what="the orphans' end", seconds=60)
    await wait_for(is_counted, what="I6: the ledger's agreement", seconds=60)
