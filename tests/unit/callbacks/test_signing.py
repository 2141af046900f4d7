"""Signatures are those that receivers' libraries verify; secrets show in no error (§11.2)."""

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import InvalidWebhookSignatureError, OpenAI
from standardwebhooks import Webhook, WebhookVerificationError

from gateway_core.callbacks.signing import (
    BadSecret,
    make_headers,
    make_message_id,
    read_secret,
    sign,
)

OLD = "whsec_" + base64.b64encode(b"o" * 32).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"x" * 32).decode()
BODY = b'{"id":"task_a","status":"completed"}'


def make(*secrets, at=None, body=BODY):
    keys = [read_secret(secret) for secret in secrets]
    return make_headers(keys, "msg_a", int(at or time.time()), body)


def verify_openai(secret, body, headers):
    client = OpenAI(api_key="none", webhook_secret=secret)
    client.webhooks.verify_signature(body.decode(), headers)


@pytest.mark.parametrize("secrets", [(NEW,), (NEW, OLD)])
def test_standardwebhooks_verifies(secrets):
    for secret in secrets:
        assert Webhook(secret).verify(BODY, make(*secrets)) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(BODY, make(*secrets))


@pytest.mark.parametrize("secrets", [(NEW,), (NEW, OLD)])
def test_openai_sdk_verifies(secrets):
    for secret in secrets:
        verify_openai(secret, BODY, make(*secrets))
    with pytest.raises(InvalidWebhookSignatureError):
        verify_openai(OTHER, BODY, make(*secrets))


def test_changed_body_id_or_time_is_refused():
    headers = make(NEW)
    for changed in (
        {**headers, "webhook-id": "msg_b"},
        {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) - 1)},
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(NEW).verify(BODY, changed)
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(BODY + b" ", headers)


@given(st.binary(max_size=2000), st.lists(st.binary(min_size=24, max_size=64), min_size=1))
def test_signatures_are_separated_by_a_space_and_versioned_by_a_comma(body, keys):
    parts = sign(keys, "msg_a", 1_800_000_000, body).split(" ")
    assert len(parts) == len(keys)
    assert all(part.startswith("v1,") and part.count(",") == 1 for part in parts)
    assert parts[0] == sign(keys[:1], "msg_a", 1_800_000_000, body)


def test_headers_are_exactly_those_of_the_contract():
    headers = make(NEW, at=1_800_000_000)
    assert sorted(headers) == [
        "Content-Type",
        "User-Agent",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    ]
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"] == "gateway-callback/1"
    assert headers["webhook-timestamp"] == "1800000000"


def test_message_id_is_derived_from_the_uid_without_showing_it():
    first, again, other = make_message_id("uid-1"), make_message_id("uid-1"), make_message_id("u")
    assert first == again != other
    assert first.startswith("msg_")
    assert "." not in first
    assert "uid" not in first


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "whsec_",
        "whsec_c2hvcnQ=",
        "whsec_" + base64.b64encode(b"a" * 65).decode(),
        "whsec_!" + base64.b64encode(b"a" * 32).decode(),
        base64.b64encode(b"a" * 32).decode(),
    ],
)
def test_invalid_secret_is_refused_and_not_shown(text):
    with pytest.raises(BadSecret) as caught:
        read_secret(text)
    assert not text or text.removeprefix("whsec_") not in str(caught.value) or len(text) < 8


def test_white_space_around_a_secret_is_none_of_it():
    assert read_secret(f" {NEW}\n") == b"n" * 32
