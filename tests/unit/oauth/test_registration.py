"""What a client may say of itself (contract §10.5)."""

import pytest

from gateway_core.api.errors import OAuthError
from gateway_core.oauth.registration import is_plain_name, read_metadata


@pytest.mark.parametrize(
    "name",
    [
        "Claude",
        "Ann's editor",
        "Müller & Söhne",
        "日本語クライアント",
        "נתן",
        "Café",
        "🚀 go",
        "Ti\u1ebfng",
    ],
)
def test_names_of_all_languages_are_taken(name):
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a\u202eb",
        "a\u2066b",
        "a\u200fb",
        "a\u200bb",
        "a\u00adb",
        "a\ufeffb",
        "\u3164",
        "a\u115fb",
        "a\uffa0b",
        "\u2800\u2800",
        "a\ufe0fb",
        "a\u034fb",
        "a\U000e0101b",
        "a\U000e0041b",
        "a\u2028b",
        "a\x7fb",
        "e" + "\u0301" * 4,
    ],
)
def test_names_that_hide_something_are_refused(name):
    assert not is_plain_name(name)
    with pytest.raises(OAuthError) as error:
        read_metadata({"redirect_uris": ["https://a.example/"], "client_name": name})
    assert error.value.code == "invalid_client_metadata"
