"""API keys: their format, and what is refused without a look-up (§0.10)."""

import hashlib
import hmac
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway_core.api.key import KeyClass, digest, mint_key, parse_key

BASE62 = string.digits + string.ascii_letters
KNOWN = "sk-abcdefgh_0123456789ABCDEFGHIJKLMNOPQRSTUV11z8kV"


@pytest.mark.parametrize(("key_class", "prefix"), [("Standard", "sk-"), ("Management", "mk-")])
def test_new_key_is_well_formed(key_class: KeyClass, prefix: str) -> None:
    made = mint_key(key_class)
    assert made.plaintext.startswith(prefix + made.id + "_")
    assert len(made.plaintext) == 3 + 8 + 1 + 32 + 6
    parsed = parse_key(made.plaintext)
    assert parsed is not None
    assert (parsed.key_class, parsed.id) == (key_class, made.id)


def test_hint_gives_away_little() -> None:
    made = mint_key()
    begin, end = made.hint.split("…")
    assert made.plaintext.startswith(begin)
    assert made.plaintext.endswith(end)
    assert len(begin) == 7
    assert len(end) == 4
    assert len(made.hint) <= 16, "GatewayKey keeps no longer hint"


def test_keys_differ() -> None:
    made = [mint_key() for _ in range(500)]
    assert len({key.plaintext for key in made}) == len({key.id for key in made}) == 500


def test_checksum_stays_the_same_over_releases() -> None:
    """Keys that are out there must go on to open."""
    assert parse_key(KNOWN) is not None


@given(st.integers(min_value=0, max_value=49), st.sampled_from(BASE62))
def test_typing_error_is_refused(place: int, character: str) -> None:
    text = mint_key().plaintext
    assume(text[place] != character)
    assert parse_key(text[:place] + character + text[place + 1 :]) is None


@given(st.integers(min_value=12, max_value=48))
def test_two_characters_swapped_are_refused(place: int) -> None:
    text = mint_key().plaintext
    assume(text[place] != text[place + 1])
    swapped = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    assert parse_key(swapped) is None


@given(st.text(max_size=60))
@example(KNOWN + "\n")
@example(" " + KNOWN)
@example(KNOWN.upper())
@example(KNOWN.replace("sk-", "mk-"))
@example(KNOWN[:-1])
@example("")
@example("sk-abcdefgh_" + "٣" * 38)
def test_malformed_key_is_refused(text: str) -> None:
    assert parse_key(text) is None


def test_digest_is_a_keyed_hash() -> None:
    made = mint_key().plaintext
    expected = hmac.new(b"pepper", made.encode(), hashlib.sha256).hexdigest()
    assert digest(made, b"pepper") == expected
    assert digest(made, b"other") != expected
    assert digest(made[:-1], b"pepper") != expected
