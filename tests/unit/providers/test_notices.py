"""Addresses for the notices of providers: nobody makes one who has not the key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.providers.notices import Notice, NoticeSigner

KEY = b"k" * 32
SIGNER = NoticeSigner(KEY)
NOTICE = Notice("task-abc", "5f0c1d9e-1111-4222-8333-444455556666")


def test_signed_path_says_what_it_was_signed_for() -> None:
    assert SIGNER.verify(SIGNER.sign(NOTICE)) == NOTICE


@pytest.mark.parametrize("position", range(len("/notices/"), len(SIGNER.sign(NOTICE)) - 1))
def test_path_with_any_other_character_is_forged(position: int) -> None:
    path = SIGNER.sign(NOTICE)
    other = "a" if path[position] != "a" else "b"
    assert SIGNER.verify(path[:position] + other + path[position + 1 :]) is None


def test_another_key_signs_otherwise_and_a_short_one_is_refused() -> None:
    assert NoticeSigner(b"x" * 32).verify(SIGNER.sign(NOTICE)) is None
    with pytest.raises(ValueError, match="16 bytes"):
        NoticeSigner(b"short")


@given(st.text(max_size=200))
def test_text_without_the_key_is_never_verified(text: str) -> None:
    assert SIGNER.verify(text) is None
    assert SIGNER.verify("/notices/task-abc/" + text) is None
