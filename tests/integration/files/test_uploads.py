"""`/v1/uploads` by the unmodified OpenAI SDK, on real processes (contract §4)."""

import asyncio
import hashlib
import secrets

import pytest

from tests.integration.sdk import open_openai
from tests.servers.world import wait_for


@pytest.fixture
async def sdk(client):
    async with open_openai(client) as made:
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
