"""`/v1/files` through the unmodified OpenAI SDK, on real processes and a real store (§3)."""

import asyncio
import hashlib
import secrets

import openai
import pytest

from tests.integration.sdk import open_openai
from tests.servers.replica import Replica
from tests.servers.tenants import open_tenant, wait_known

LARGE = 20_000_000


@pytest.fixture(scope="module")
def base(world):
    return world.env["GATEWAY_BASE_URL"]


@pytest.fixture(scope="module")
def second(world):
    """Where another API process is."""
    with Replica(world, "api") as replica:
        yield replica.base_url


@pytest.fixture
def sdk(client):
    return open_openai(client)


async def test_file_is_stored_read_and_deleted(sdk):
    content = secrets.token_bytes(LARGE)
    made = await sdk.files.create(
        file=("notes é.bin", content),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (made.bytes, made.filename, made.status) == (LARGE, "notes é.bin", "processed")
    assert made.expires_at == made.created_at + 3600
    assert made._request_id.startswith("req_")
    assert await sdk.files.retrieve(made.id) == made
    assert (await sdk.files.wait_for_processing(made.id)).id == made.id
    answer = await sdk.files.content(made.id)
    assert hashlib.sha256(answer.content).digest() == hashlib.sha256(content).digest()
    part = await sdk.files.with_raw_response.content(
        made.id, extra_headers={"Range": "bytes=1000000-2999999"}
    )
    assert part.status_code == 206
    assert part.content == content[1_000_000:3_000_000]
    assert (await sdk.files.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError) as refused:
        await sdk.files.retrieve(made.id)
    assert refused.value.code == "file_not_found"
    assert refused.value.request_id


async def test_files_of_other_accounts_are_404(sdk, other, base):
    made = await sdk.files.create(file=("a", b"mine"), purpose="user_data")
    theirs = open_openai(other, base)
    for call in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(made.id)
    assert (await sdk.files.content(made.id)).content == b"mine"


@pytest.mark.full
async def test_file_is_listed_at_once_by_another_process(client, base, second):
    await wait_known(client, base=second)
    here, there = open_openai(client, base), open_openai(client, second)
    await there.files.list()
    kept = []
    for number in range(10):
        maker, reader = (here, there) if number % 2 else (there, here)
        made = await maker.files.create(file=("a", b"x"), purpose="user_data")
        kept.insert(0, made.id)
        assert [file.id for file in (await reader.files.list()).data] == kept
        if number % 3 == 2:
            await reader.files.delete(kept.pop())
            assert [file.id for file in (await maker.files.list()).data] == kept


@pytest.mark.full
async def test_storage_is_never_overshot_at_two_processes(world, base, second):
    async with open_tenant(world, storageBytes=100_000) as client:
        for place in (base, second):
            await wait_known(client, base=place)
        sdks = [open_openai(client, base), open_openai(client, second)]
        answers = await asyncio.gather(
            *(
                sdks[number % 2].files.create(file=("a", bytes(30_000)), purpose="user_data")
                for number in range(10)
            ),
            return_exceptions=True,
        )
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert len(refused) == 7
        assert {error.code for error in refused} == {"storage_limit_exceeded"}
        await sdks[0].files.delete((await sdks[1].files.list()).data[0].id)
        await sdks[1].files.create(file=("a", bytes(30_000)), purpose="user_data")
