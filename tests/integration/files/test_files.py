"""`/v1/files` through the unmodified OpenAI SDK, on real processes and a real store (§3)."""

import asyncio
import hashlib
import secrets

import aiohttp
import openai
import pytest

from tests.servers.replica import Replica
from tests.servers.tenants import open_tenant, wait_known

LARGE = 20_000_000


def connect(client, base, *, strict=False):
    """The SDK with this client's key."""
    return openai.AsyncOpenAI(
        api_key=client.key,
        base_url=f"{base}/v1",
        max_retries=0,
        _strict_response_validation=strict,
    )


@pytest.fixture(scope="module")
def base(world):
    return world.env["GATEWAY_BASE_URL"]


@pytest.fixture(scope="module")
def second(world):
    """Where another API process is."""
    with Replica(world, "api") as replica:
        yield replica.base_url


@pytest.fixture(params=[False, True], ids=["normal", "strict"])
def sdk(client, base, request):
    return connect(client, base, strict=request.param)


async def test_a_file_from_its_making_to_its_end(sdk):
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


async def test_deleting_whatever_is_listed(sdk):
    made = [
        (await sdk.files.create(file=b"%d" % number, purpose="batch")).id for number in range(5)
    ]
    seen = []
    async for file in sdk.files.list(limit=2, order="asc"):
        await sdk.files.delete(file.id)
        seen.append(file.id)
    assert seen == made
    assert (await sdk.files.list()).data == []


async def test_refusals_have_their_codes(sdk):
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.files.create(file=("a", b"x"), purpose="vision")
    assert (refused.value.code, refused.value.param) == ("invalid_value", "purpose")
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.files.create(file=("a", b""), purpose="batch")
    assert refused.value.code == "empty_file"
    with pytest.raises(openai.APIStatusError) as refused:
        await sdk.files.create(file=("a", bytes(52_428_801)), purpose="user_data")
    assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
    with pytest.raises(openai.NotFoundError) as refused:
        await sdk.files.list(after="file-" + "a" * 26)
    assert refused.value.param == "after"
    assert (await sdk.files.list()).data == []


async def test_files_of_other_accounts_are_404(sdk, other, base):
    made = await sdk.files.create(file=("a", b"mine"), purpose="user_data")
    theirs = connect(other, base)
    for call in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(made.id)
    assert (await sdk.files.content(made.id)).content == b"mine"


async def test_file_is_listed_at_once_by_another_process(client, base, second):
    await wait_known(client, base=second)
    here, there = connect(client, base), connect(client, second)
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


async def test_storage_is_never_overshot_at_two_processes(world, base, second):
    async with open_tenant(world, storageBytes=100_000) as client:
        for place in (base, second):
            await wait_known(client, base=place)
        sdks = [connect(client, base), connect(client, second)]
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


async def test_a_body_that_breaks_off_leaves_nothing(world, client, base):
    async def cut_off():
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield bytes(1_000_000)
        raise ConnectionResetError

    store = world.config.store_directory / "files" / client.account
    headers = {
        "Authorization": f"Bearer {client.key}",
        "Content-Type": "multipart/form-data; boundary=b",
    }
    async with aiohttp.ClientSession() as session:
        with pytest.raises((aiohttp.ClientError, ConnectionResetError)):
            await session.post(f"{base}/v1/files", data=cut_off(), headers=headers)
    assert (await connect(client, base).files.list()).data == []
    assert not store.exists()
