"""`/v1/uploads` by the unmodified OpenAI SDK, on real processes (contract §4)."""

import asyncio
import hashlib
import io
import secrets

import openai
import pytest

from tests.servers.world import wait_for


@pytest.fixture(params=[False, True], ids=["lenient", "strict"])
async def sdk(world, client, request):
    """The SDK with the key of an account of its own."""
    made = openai.AsyncOpenAI(
        api_key=client.key,
        base_url=world.env["GATEWAY_BASE_URL"] + "/v1",
        _strict_response_validation=request.param,
    )
    async with made:
        yield made


def read_bytes(world, file_id):
    """The bytes of a File, as its object says where they are."""
    segments = world.read("gatewayfile", file_id)["spec"]["request"]["segments"]
    store = world.config.store_directory
    return b"".join((store / segment["key"]).read_bytes() for segment in segments)


async def begin(sdk, size, **changes):
    wanted = {"filename": "a.bin", "mime_type": "pdf", "purpose": "user_data", **changes}
    return await sdk.uploads.create(bytes=size, **wanted)


async def test_parts_in_parallel_and_repeated_become_the_file(world, sdk):
    pieces = [secrets.token_bytes(300_000 + n) for n in range(6)]
    upload = await begin(sdk, sum(map(len, pieces)))
    assert upload.status == "pending"
    assert upload.expires_at == upload.created_at + 3600
    # each is sent twice, as by a client whose connection broke
    sent = [sdk.uploads.parts.create(upload.id, data=piece) for piece in pieces * 2]
    parts = await asyncio.gather(*sent)
    assert len({part.id for part in parts}) == 12
    assert {part.upload_id for part in parts} == {upload.id}
    ids = [part.id for part in parts[6:]]
    md5 = hashlib.md5(b"".join(pieces), usedforsecurity=False).hexdigest()
    done = await sdk.uploads.complete(upload.id, part_ids=ids, md5=md5)
    assert done.status == "completed"
    assert done.file.status == "processed"
    assert read_bytes(world, done.file.id) == b"".join(pieces)
    again = await sdk.uploads.complete(upload.id, part_ids=ids)
    assert again == done
    # the parts that were not listed go once it is settled, and the file's stay
    name = upload.id.replace("_", "-")
    await wait_for(
        lambda: (world.read("gatewayupload", name).get("status") or {}).get("work") == "Settled",
        what="settlement",
    )
    folder = next((world.config.store_directory / "uploads").glob(f"*/{name}"))
    assert {path.name for path in folder.iterdir()} == set(ids)
    assert read_bytes(world, done.file.id) == b"".join(pieces)
    assert await sdk.uploads.complete(upload.id, part_ids=ids) == done


async def test_chunked_uploads_of_bytes_and_files(world, sdk, tmp_path):
    data = secrets.token_bytes(1_000_000)
    done = await sdk.uploads.upload_file_chunked(
        file=data,
        filename="a.jsonl",
        bytes=len(data),
        mime_type="application/jsonl",
        purpose="batch",
        part_size=300_000,
        md5=hashlib.md5(data, usedforsecurity=False).hexdigest(),
    )
    assert (done.status, done.file.filename, done.file.purpose) == (
        "completed",
        "a.jsonl",
        "batch",
    )
    assert done.file.expires_at == done.file.created_at + 30 * 86_400
    assert read_bytes(world, done.file.id) == data
    path = tmp_path / "b.bin"
    path.write_bytes(data)
    from_disk = await sdk.uploads.upload_file_chunked(
        file=path, mime_type="application/x", purpose="user_data"
    )
    assert read_bytes(world, from_disk.file.id) == data


async def test_a_chunked_upload_with_a_wrong_md5_makes_no_file(world, sdk):
    data = secrets.token_bytes(500_000)
    with pytest.raises(openai.BadRequestError) as told:
        await sdk.uploads.upload_file_chunked(
            file=data,
            filename="wrong.bin",
            bytes=len(data),
            mime_type="application/x",
            purpose="user_data",
            part_size=200_000,
            md5="0" * 32,
        )
    assert (told.value.code, told.value.param) == ("md5_mismatch", "md5")
    assert (await sdk.files.list()).data == []


async def test_wrong_md5_is_refused_and_the_right_one_accepted_after_it(sdk):
    upload = await begin(sdk, 3)
    part = await sdk.uploads.parts.create(upload.id, data=io.BytesIO(b"abc"))
    with pytest.raises(openai.BadRequestError) as told:
        await sdk.uploads.complete(upload.id, part_ids=[part.id], md5="0" * 32)
    assert (told.value.code, told.value.param) == ("md5_mismatch", "md5")
    md5 = hashlib.md5(b"abc", usedforsecurity=False).hexdigest()
    done = await sdk.uploads.complete(upload.id, part_ids=[part.id], md5=md5)
    assert done.status == "completed"


async def test_second_cancel_of_an_upload_is_refused(sdk):
    upload = await begin(sdk, 3)
    part = await sdk.uploads.parts.create(upload.id, data=b"abc")
    cancelled = await sdk.uploads.cancel(upload.id)
    assert (cancelled.status, cancelled.file) == ("cancelled", None)
    assert await sdk.uploads.cancel(upload.id) == cancelled
    with pytest.raises(openai.ConflictError) as told:
        await sdk.uploads.complete(upload.id, part_ids=[part.id])
    assert told.value.code == "upload_state_conflict"
    with pytest.raises(openai.NotFoundError):
        await sdk.uploads.cancel("upload_" + "a" * 26)
    with pytest.raises(openai.BadRequestError):
        await begin(sdk, 0)
