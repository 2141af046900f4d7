"""What a client may see of a provider's own words."""

import time
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.providers.redaction import MAX_MESSAGE, MessageCleaner, redact_secrets

SECRET = "s3cr3t-Credential-0042"
CLEANER = MessageCleaner(["api.vendor.example", "*.cdn.example", "render"], [SECRET])


@pytest.mark.parametrize(
    ("raw", "gone"),
    [
        ("See https://api.vendor.example/docs?x=1 for more", "vendor"),
        ("See HTTP:\\/\\/api.vendor.example\\/docs", "vendor"),
        ("Host api.vendor.example:8443/v1 failed", "8443"),
        ("Node gpu-7.eu.vendor.example failed", "gpu-7"),
        ("From render:9010 with love", "render"),
        ("At img.cdn.example today", "cdn.example"),
        ("Node 10.1.2.3:8080 failed", "10.1.2.3"),
        ("Node [2001:db8::1]:80 failed", "2001"),
        ("Node fe80::1 failed", "fe80"),
        (f"Bad key {SECRET}!", "Credential"),
        ("Bad key s3cr3t-Cred\u200bential-0042!", "0042"),
        ("Bad key s3cr3t-Credential-0042%20!", "0042"),
        ("Incorrect key given: sk-abC4***********9xYz.", "9xYz"),
        ("No access with sk-abcdefgh", "abcdefgh"),
        ("No access with AIzaSyAbcdefghijk", "Syabc"),
        ("Limit of org-abcdefgh reached", "abcdefgh"),
        ("No access with sk-proj-Ab_cd-EfGh", "EfGh"),
        ("No access with xai-abcdef", "abcdef"),
        ("No access with gsk_abcdef", "abcdef"),
        ("No access with ya29.a0AfH6", "a0AfH6"),
        ("No access with ASIAIOSFODNN7EXAMPLE", "FODNN"),
        ("No access with wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "MDENG"),
        ("No access with fw_3Zabcdefgh", "abcdefgh"),
        ("No access with glpat-abcdefgh", "abcdefgh"),
        ("No access by arn:aws:iam::123456789012:user/bob", "bob"),
        ("No access to projects/my-project/locations/eu", "my-project"),
        ("No access to project 'my-project-1'", "my-project-1"),
        ("No access to project number 123456789", "123456789"),
        ("No access of org-acme", "acme"),
        ("Authorization: Bearer abc.def.ghi failed", "abc.def"),
        ("Limit of org-AbCdEfGh reached", "AbCdEfGh"),
        ("Request id 7f9c24e8-3b12-4fef-91e0-5d4c3b2a1f00 failed", "7f9c24e8"),
        ("Token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc denied", "eyJ"),
        ("Job job_42abc failed", "42abc"),
        ("Write to support+1@vendor.example or a.b@c.org", "@"),
    ],
)
def test_addresses_and_secrets_are_removed(raw: str, gone: str) -> None:
    cleaned = CLEANER.clean(raw, "fallback")
    assert gone not in cleaned
    assert "[removed]" in cleaned


@pytest.mark.parametrize(
    "raw",
    [
        "reference_image_urls[0] must be a JPG, PNG or WEBP image of at most 20.5 MB.",
        "output_resolution_1080p is not supported with aspect_ratio 21:9.",
        "The prompt was refused by the content policy (violence).",
        "input.reference_image_urls.0: could not be read",
        "Ton à 44,1 kHz — refusé",
        "generationConfig.thinkingConfig.thinkingBudget must be at most 24576",
        "meta-llama/Llama-3.3-70B-Instruct-Turbo-Free does not support tools",
        "tools[0].function_declarations[0].parameters.properties: should be non-empty",
    ],
)
def test_text_that_helps_the_client_stays(raw: str) -> None:
    assert CLEANER.clean(raw, "fallback") == raw


@pytest.mark.parametrize(
    "raw",
    [
        "You exceeded your current quota, please check your plan and billing details.",
        "Your credit balance is too low to access the API.",
        "Insufficient Balance",
        "API key not valid. Please pass a valid API key.",
        "Incorrect API key provided: sk-abC4***********9xYz.",
        "Your organization must be verified to stream this model.",
        "Organization: acme-corp is over its limit",
        "This account has been deactivated.",
        "Requests of the free tier are limited; upgrade your plan.",
        '"You exceeded your current quota, see our site."',
        "Consumer 'project_number:123456789' has been suspended.",
        "You have reached your monthly limit.",
        "账户余额不足",
    ],
)
def test_text_on_the_gateways_account_becomes_the_fallback(raw: str) -> None:
    assert CLEANER.clean(raw, "fallback") == "fallback"


@pytest.mark.parametrize(
    "raw",
    [
        "Invalid schema for function 'billing': 'quota' is not valid.",
        "Unknown name \"organization\" at 'tools[0]'",
        "Take the time of the prompt into account.",
    ],
)
def test_words_of_the_request_are_not_about_the_gateways_account(raw: str) -> None:
    assert CLEANER.clean(raw, "fallback") == raw


@pytest.mark.parametrize(
    "raw", [None, 5, [], {}, "", "  \n\t", "https://api.vendor.example/x", "***", SECRET]
)
def test_text_of_which_nothing_is_left_becomes_the_fallback(raw: object) -> None:
    assert CLEANER.clean(raw, "fallback") == "fallback"


def test_cleaner_without_hosts_keeps_plain_text() -> None:
    assert (
        MessageCleaner((), ()).clean("A still is too dark.", "fallback") == "A still is too dark."
    )


def test_ids_are_taken_out() -> None:
    assert "abcd" not in CLEANER.clean("No frame for abcd", "fallback", "abcd")


def test_white_space_and_control_characters_collapse() -> None:
    assert CLEANER.clean("a\r\n\tb\x00c\u2028d\u200be", "f") == "a b c de"


def test_long_text_is_cut() -> None:
    cleaned = CLEANER.clean("word " * 500, "fallback")
    assert len(cleaned) <= MAX_MESSAGE
    assert cleaned.endswith("…")


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_any_text_comes_out_short_printable_and_not_empty(raw: str) -> None:
    cleaned = CLEANER.clean(raw + SECRET + raw, "fallback")
    assert 0 < len(cleaned) <= MAX_MESSAGE
    assert SECRET not in cleaned
    cleaned.encode()
    assert " ".join(cleaned.split()) == cleaned


@pytest.mark.parametrize("unit", ["a", ".", "-", "*", "a.", "sk-", "a@", "1:", "key: ", "é", "://"])
def test_cleaning_a_mebibyte_takes_less_than_a_second(unit: str) -> None:
    started = time.process_time()
    CLEANER.clean(unit * (2**20 // len(unit)), "fallback")
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "text",
    [
        "use sk-abcdefgh_12345 please",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "gwat_abcdefghijklmnopqrstuvwxyz_1_" + "a" * 32,
        "gwrt_abcdefghijklmnopqrstuvwxyz_1_" + "a" * 32,
        "gwcs_" + "a" * 43,
        '{"Authorization":"Bearer abcdefgh"}',
        '{\\"password\\": \\"correct horse\\"}',
        "api_key = hunter2hunter2",
        "AIzaSyD-1234567890abcdef",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_text_of_a_client_loses_what_looks_like_a_credential(text: str) -> None:
    redacted = redact_secrets(text)
    assert "[removed]" in redacted
    for secret in ("12345", "MfKQ", "abcdefgh", "correct", "hunter2", "MIIEow"):
        assert secret not in redacted


def test_text_without_credentials_stays() -> None:
    text = '{"model":"chat-1","max_tokens":1000,"messages":[{"content":"Where is the key?"}]}'
    assert redact_secrets(text) == text


WORDS = "correcthorse-Battery/staple+Gateway"
"""A credential without digits, and of no known vendor."""


@pytest.mark.parametrize(
    "form",
    [
        WORDS,
        WORDS.upper(),
        WORDS.lower(),
        WORDS.replace("/", "\\/"),
        " ".join(WORDS),
        "correcthorse\n-Battery/\n staple+Gateway",
        WORDS.replace("-", "").replace("+", " "),
        quote(WORDS, safe=""),
        quote_plus(WORDS).lower(),
        "".join(f"%{ord(character):02x}" for character in WORDS),
        "".join(f"&#{ord(character)};" for character in WORDS),
        "".join(f"\\u{ord(character):04x}" for character in WORDS),
        WORDS.replace("-", "&#45;").replace("/", "&#x2F;").replace("+", "&#43;"),
        WORDS[::-1],
        WORDS.encode().hex(),
        WORDS.encode().hex().upper(),
        b64encode(WORDS.encode()).decode(),
        urlsafe_b64encode(WORDS.encode()).decode().rstrip("="),
        b64encode(b"user:" + WORDS.encode()).decode(),
        b64encode(b"me:" + WORDS.encode() + b":x").decode(),
        WORDS[:-3],
        WORDS[4:],
        WORDS[:12],
        WORDS[-14:],
        "corr***********eway",
        "co•••••••ay",
        "corr…eway",
        "corr...way",
        "corrXXXXXXXXXXXXway",
        "****************way",
        f"({WORDS})",
        f"x-vendor={WORDS};",
    ],
)
@pytest.mark.parametrize("text", ["Refused: {}", "{} is refused", "input '{}' is refused."])
def test_credential_is_removed_in_any_form(form: str, text: str) -> None:
    cleaner = MessageCleaner([], [f"Token {WORDS}", WORDS])
    cleaned = cleaner.clean(text.format(form), "fallback")
    assert "removed" in cleaned
    assert "refused" in cleaned.lower()
    for piece in ("corre", "Battery", "staple", "eway", "way", "esroh", "Y29ycm"):
        assert piece.lower() not in cleaned.lower()


@pytest.mark.parametrize(
    "raw",
    [
        "The prompt must not be empty ... see the field input.",
        "Battery life of the horse is refused: use 4 * 4 frames.",
        "The value **bold** of the gateway is refused",
        "correct horses are refused",
        "100%25 of &lt;b&gt; \\u00e9 is refused",
    ],
)
def test_words_that_a_credential_has_too_stay(raw: str) -> None:
    assert MessageCleaner([], [f"Token {WORDS}", WORDS]).clean(raw, "fallback") == raw


def test_value_of_a_header_is_removed_as_it_is_and_its_words_stay() -> None:
    cleaner = MessageCleaner((), ["secret-1234567890"], ["video-generation", "Bearer static-1"])
    assert cleaner.clean("generation of video failed", "") == "generation of video failed"
    for value in ("video-generation", "Bearer static-1"):
        assert cleaner.clean(f"bad header {value}", "") == "bad header [removed]"


def test_text_around_an_escaped_credential_is_printable() -> None:
    key = quote(WORDS, safe="")
    raw = f"The key {key} of \\ud83d %00 &#8203; is refused"
    cleaned = MessageCleaner([], [WORDS]).clean(raw, "fallback")
    assert cleaned == "The key [removed] of is refused"


def test_values_of_a_long_document_are_removed() -> None:
    lines = "\n".join(f"{number:03}abcdefghijklmnopqrst{number:03}" for number in range(80))
    cleaner = MessageCleaner([], [f'{{"private_key": "{lines}", "client": "someone-else"}}'])
    cleaned = cleaner.clean("Bad: 041abcdefghijklmnopqrst041 of someone-else", "fallback")
    assert "abcdefgh" not in cleaned
    assert "someone" not in cleaned


def test_text_of_many_words_is_cleaned_soon() -> None:
    cleaner = MessageCleaner([], [f"{number}{WORDS}{number}" for number in range(20)])
    began = time.monotonic()
    for text in ("c" * 20_000, "*a" * 9000, "correcthorse-" * 1500, "x" * 20_000, "a." * 9000):
        cleaner.clean(text, "fallback")
    assert time.monotonic() - began < 10
