"""The bytes of a File: its segments one after the other, and no wrong ones to the end."""

import hashlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api.resource import ObjectRef
from gateway_core.storage.content import ContentDamaged, read_segments, stream_content
from gateway_core.storage.objects import DOWNLOAD_CHUNK_BYTES as CHUNK_BYTES
from gateway_core.storage.objects import ObjectMissing
from tests.fakes.objects import FakeObjects


def store_segments(store: FakeObjects, *parts: bytes, quick: bool = True) -> list[ObjectRef]:
    """With both digests; not `quick`: with the one that every reference has."""
    found = []
    for number, part in enumerate(parts):
        store.contents[f"files/{number}"] = part
        sha256, xxh3 = hashlib.sha256(part).hexdigest(), xxhash.xxh3_128_hexdigest(part)
        found.append(
            ObjectRef(
                key=f"files/{number}",
                bytes=len(part),
                sha256=sha256,
                xxh3=xxh3 if quick else None,
            )
        )
    return found


async def read(
    store: FakeObjects, segments: list[ObjectRef], start: int = 0, length: int | None = None
) -> bytes:
    return b"".join([chunk async for chunk in stream_content(store, segments, start, length)])


@given(
    parts=st.lists(st.binary(max_size=9), min_size=1, max_size=6),
    start=st.integers(0, 60),
    length=st.none() | st.integers(0, 60),
)
async def test_range_is_that_of_the_whole_content(
    parts: list[bytes], start: int, length: int | None
) -> None:
    store, whole = FakeObjects(), b"".join(parts)
    end = len(whole) if length is None else start + length
    if end > len(whole):
        length = None
    assert await read(store, store_segments(store, *parts), start, length) == whole[start:end]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("damage", ["flipped", "short", "long", "last"])
async def test_last_chunk_of_damaged_content_is_withheld(damage: str, quick: bool) -> None:
    store = FakeObjects()
    part = bytes(range(256)) * (3 * CHUNK_BYTES // 256)
    segments = store_segments(store, b"before", part, b"after", quick=quick)
    assert await read(store, segments) == b"before" + part + b"after"
    wrong = {
        "flipped": b"\xff" + part[1:],
        "short": part[:-1],
        "long": part + b"x",
        "last": part[:-1] + b"x",
    }
    store.contents["files/1"] = wrong[damage]
    got, stream = b"", stream_content(store, segments)
    with pytest.raises(ContentDamaged, match="segment 1") as raised:  # noqa: PT012
        while True:
            got += await anext(stream)
    assert len(got) < len(b"before") + len(part)
    assert "files/" not in str(raised.value)


async def test_quick_digest_is_checked_where_there_is_one() -> None:
    store = FakeObjects()
    [ref] = store_segments(store, b"0123456789")
    other = ref.model_copy(update={"sha256": "0" * 64})
    assert await read(store, [other]) == b"0123456789"
    with pytest.raises(ContentDamaged):
        await read(store, [ref.model_copy(update={"xxh3": "0" * 32})])


async def test_segment_of_a_range_has_its_length_checked() -> None:
    store = FakeObjects()
    segments = store_segments(store, b"0123456789", b"abc")
    store.contents["files/0"] = b"01234"
    assert await read(store, segments, 1, 3) == b"123"
    with pytest.raises(ContentDamaged):
        await read(store, segments, 1, 8)
    del store.contents["files/1"]
    with pytest.raises(ObjectMissing):
        await read(store, segments, 10)


async def test_segments_are_those_of_the_resource() -> None:
    store = FakeObjects()
    for quick in (True, False):
        [ref] = store_segments(store, b"x", quick=quick)
        raw = ref.model_dump(by_alias=True, exclude_none=True)
        assert set(raw) == {"key", "bytes", "sha256", *(["xxh3"] if quick else [])}
        assert read_segments({"spec": {"request": {"segments": [raw]}}}) == [ref]
