"""Signed addresses of media: forged, altered and expired ones are refused."""

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway_core.files.addresses import LIFETIME_SECONDS, MediaItem, MediaSigner, Sealer

NOW = 1_800_000_000
SIGNER = MediaSigner(b"m" * 32)
UID = "0f0e0d0c-0b0a-4908-8706-050403020100"
ITEM = MediaItem(UID, 0)
PATH = SIGNER.sign(ITEM, "video/mp4", NOW + LIFETIME_SECONDS)

uids = st.uuids().map(str)
indexes = st.integers(min_value=0, max_value=15)


@given(uids, indexes)
def test_signed_path_is_verified(uid: str, index: int) -> None:
    item = MediaItem(uid, index)
    path = SIGNER.sign(item, "video/mp4", NOW + 60)
    assert SIGNER.verify(path, NOW) == item
    assert re.fullmatch(r"[A-Za-z0-9/_.-]+", path), "stands in any URL as it is"


def test_address_is_valid_for_thirty_days() -> None:
    assert SIGNER.verify(PATH, NOW + 30 * 86400 - 1) == ITEM
    assert SIGNER.verify(PATH, NOW + 30 * 86400) is None


@pytest.mark.parametrize(
    ("content_type", "name"),
    [
        ("video/mp4", "video.mp4"),
        ("video/webm", "video.webm"),
        ("video/quicktime", "video.mov"),
        ("application/octet-stream", "video.mp4"),
    ],
)
def test_file_name_follows_the_content_type(content_type: str, name: str) -> None:
    assert SIGNER.sign(ITEM, content_type, NOW).endswith("/" + name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (UID, UID.replace("0f0e", "0f0f")),
        ("/0/", "/1/"),
        ("/0/", "/00/"),
        (f"{NOW + LIFETIME_SECONDS:08x}", f"{NOW + 2 * LIFETIME_SECONDS:08x}"),
        ("/media/", "/media//"),
        (UID, UID.upper()),
        (UID, "../" + UID),
    ],
)
def test_changed_path_is_refused(old: str, new: str) -> None:
    changed = PATH.replace(old, new, 1)
    assert changed != PATH
    assert SIGNER.verify(changed, NOW) is None


@given(st.integers(min_value=0, max_value=26), st.sampled_from("abcXYZ019-_"))
def test_changed_signature_is_refused(place: int, character: str) -> None:
    begin = PATH.index(f"{NOW + LIFETIME_SECONDS:08x}-") + 9
    assume(PATH[begin + place] != character)
    changed = PATH[: begin + place] + character + PATH[begin + place + 1 :]
    assert SIGNER.verify(changed, NOW) is None


@given(st.text(max_size=120))
@example("")
@example(f"/media/{UID}/0/")
@example(PATH + "/x")
def test_arbitrary_text_is_no_media_path(text: str) -> None:
    assert SIGNER.verify(text, NOW) is None


def test_path_of_another_key_is_refused() -> None:
    assert MediaSigner(b"n" * 32).verify(PATH, NOW) is None


def test_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        MediaSigner(b"short")


def test_copies_of_an_output_have_one_place() -> None:
    assert (
        MediaItem("0f0e0d0c-0b0a-4908-8706-050403020100", 3).key
        == "media/0f0e0d0c-0b0a-4908-8706-050403020100/3"
    )


SEALER = Sealer(b"k" * 32)


@given(st.binary(max_size=200))
def test_sealed_text_is_unsealed(content: bytes) -> None:
    text = SEALER.seal("a", content)
    assert text == SEALER.seal("a", content)
    assert SEALER.unseal("a", text) == content
    assert SEALER.unseal("b", text) is None
    assert Sealer(b"l" * 32).unseal("a", text) is None
    assert SEALER.unseal("a", text + "=") is None
    assert SEALER.unseal("a", text[:-1]) is None


@given(st.text(max_size=100) | st.text("AB-_=", max_size=99))
def test_arbitrary_text_is_not_unsealed(text: str) -> None:
    assert SEALER.unseal("a", text) is None


def test_long_text_is_not_unsealed() -> None:
    assert SEALER.unseal("a", "A" * 1_000_000) is None
