"""Which passwords people may choose."""

import pytest

from gateway_core.accounts.password_rules import (
    OWN_WORDS,
    TOO_COMMON,
    TOO_LONG,
    TOO_SHORT,
    PasswordRefused,
    check_chosen,
)

OWN = ("ann.miller@example.com", "Ann Miller")


@pytest.mark.parametrize(
    "password",
    [
        "correct horse battery staple",
        "k6rmj-xe446-4zzy5-hjuhn-vhhw3",
        "Vier Zebras trinken Tee",
        "пароль нового дома 77",
        "wR7#kq!2LmZp",
        "ann likes green tea",
        "x" + "quiet-lamp-river-9",
    ],
)
def test_long_uncommon_password_is_accepted(password):
    check_chosen(password, OWN)


@pytest.mark.parametrize(
    ("password", "text"),
    [
        ("", TOO_SHORT),
        ("elevenchars", TOO_SHORT),
        ("e\u0301" * 11, TOO_SHORT),
        ("ab-cd-ef-" * 40, TOO_LONG),
        ("password1234", TOO_COMMON),
        ("Password1234!", TOO_COMMON),
        ("P@ssw0rd2024!!", TOO_COMMON),
        ("123456789012", TOO_COMMON),
        ("839201748201", TOO_COMMON),
        ("qwertyuiop12", TOO_COMMON),
        ("qwertyuiopas", TOO_COMMON),
        ("abcdefghijkl", TOO_COMMON),
        ("lkjhgfdsapoiu", TOO_COMMON),
        ("aaaaaaaaaaaaaa", TOO_COMMON),
        ("ababababababab", TOO_COMMON),
        ("passwordpassword", TOO_COMMON),
        ("Letmein!Letmein!", TOO_COMMON),
        ("xq7wpxq7wpxq7wp", TOO_COMMON),
        ("administrator", TOO_COMMON),
        ("Summer2024!!!", TOO_COMMON),
        ("1q2w3e4r5t6y", TOO_COMMON),
        ("ann.miller@example.com", OWN_WORDS),
        ("Miller-Ann-24!", OWN_WORDS),
        ("AnnMiller1234", OWN_WORDS),
        ("ModelGateway2026", OWN_WORDS),
    ],
)
def test_short_common_or_own_password_is_refused(password, text):
    with pytest.raises(PasswordRefused) as error:
        check_chosen(password, OWN)
    assert error.value.message == text


def test_refusal_does_not_repeat_the_password():
    with pytest.raises(PasswordRefused) as error:
        check_chosen("password1234", OWN)
    assert "password1234" not in error.value.message
