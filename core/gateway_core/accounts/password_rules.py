"""Rules for the passwords that people choose: length, and how easily one is guessed. Pure.

`common_passwords.txt` is taken from the list that Django ships (BSD licence; leaked passwords by
frequency, collected by Royce Williams), without the entries that no rule below looks up.
"""

import string
import unicodedata
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from itertools import pairwise

from gateway_core.api.errors import InvalidRequest

MIN_CHARACTERS = 12
MAX_CHARACTERS = 256
MIN_DIFFERENT = 5
"""Different characters that a password needs at least."""
MAX_STEPS = 3
"""Characters that may differ from a plain sequence, such as `abcdefghijkl` or a row of keys."""
MIN_OWN_WORD = 4
"""Characters of a word of the person's own, such as a name, that is looked for."""
_EDGE = string.digits + string.punctuation + string.whitespace
_ROWS = ("abcdefghijklmnopqrstuvwxyz", "01234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")
_STEPS = frozenset(pair for row in _ROWS for line in (row, row[::-1]) for pair in pairwise(line))
_LOOKALIKES = str.maketrans("013457@$!", "oleastasi")
_SERVICE = ("modelgateway", "model", "gateway")

TOO_SHORT = f"The password needs at least {MIN_CHARACTERS} characters."
TOO_LONG = f"The password may have at most {MAX_CHARACTERS} characters."
TOO_COMMON = "This password is too easy to guess: it is common, or made of few patterns."
OWN_WORDS = "This password is too easy to guess: it is mostly your own name or email address."


class PasswordRefused(InvalidRequest):
    """A chosen password that the rules refuse."""

    code = "password_refused"


def normalize_password(password: str) -> str:
    """Return the form that is hashed: keyboards differ in how they compose the same letter."""
    return unicodedata.normalize("NFC", password)


def check_chosen(password: str, own_words: Iterable[str] = ()) -> None:
    """Raise PasswordRefused where a person may not choose it.

    `own_words` are texts that strangers connect with the person, such as name and email.
    """
    text = normalize_password(password)
    if len(text) < MIN_CHARACTERS:
        raise PasswordRefused(TOO_SHORT)
    if len(text) > MAX_CHARACTERS:
        raise PasswordRefused(TOO_LONG)
    folded = text.casefold()
    if _is_common(folded):
        raise PasswordRefused(TOO_COMMON)
    if _is_own(folded, own_words):
        raise PasswordRefused(OWN_WORDS)


def _is_common(folded: str) -> bool:
    if folded.isdigit() or len(set(folded)) < MIN_DIFFERENT or _is_sequence(folded):
        return True
    common = _load_common()
    unit = _find_unit(folded)
    candidates = (folded, unit, folded.strip(_EDGE), unit.strip(_EDGE))
    return any(
        word in common or word.translate(_LOOKALIKES) in common for word in candidates if word
    ) or len(unit) < min(MIN_CHARACTERS - MIN_DIFFERENT, len(folded))


def _is_sequence(folded: str) -> bool:
    """Return whether nearly each character follows the one before, in the alphabet or on keys."""
    return sum(pair not in _STEPS for pair in pairwise(folded)) <= MAX_STEPS


def _find_unit(folded: str) -> str:
    """Return the text whose repetition the password is; itself where it repeats none."""
    return folded[: (folded + folded).find(folded, 1)]


def _is_own(folded: str, own_words: Iterable[str]) -> bool:
    words = {
        word
        for text in (*own_words, *_SERVICE)
        for word in (text.casefold(), *_split(text.casefold()))
        if len(word) >= MIN_OWN_WORD
    }
    rest = folded
    for word in sorted(words, key=len, reverse=True):
        rest = rest.replace(word, "")
    return len(rest) < len(folded) and len(rest.strip(_EDGE)) < MIN_OWN_WORD


def _split(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in text).split()


@cache
def _load_common() -> frozenset[str]:
    """Return the list, which only a process that sets passwords reads."""
    text = files("gateway_core.accounts").joinpath("common_passwords.txt").read_text("utf-8")
    return frozenset(text.splitlines())
