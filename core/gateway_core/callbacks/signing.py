"""Standard Webhooks: message ids, signatures and their secrets (contract §11.2). Pure.

Receivers verify with `standardwebhooks` or an OpenAI SDK. Error texts never show any part of a
secret.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix, not a secret
LEAST_SECRET, MOST_SECRET = 24, 64
"""Bytes of a secret according to the standard."""


class BadSecret(ValueError):
    """The text is no signing secret."""

    def __init__(self) -> None:
        super().__init__(
            f"must be {SECRET_PREFIX} and the base64 of {LEAST_SECRET} to {MOST_SECRET} bytes"
        )


def read_secret(text: str) -> bytes:
    """Return the key of a `whsec_…` secret. BadSecret."""
    text = text.strip()
    if not text.startswith(SECRET_PREFIX):
        raise BadSecret
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadSecret from None
    if not LEAST_SECRET <= len(key) <= MOST_SECRET:
        raise BadSecret
    return key


def make_message_id(task_uid: str) -> str:
    """Return the `msg_…` id of a task's terminal event, the same in every attempt and redelivery.

    Derived from the uid, so that no write is needed before the first attempt; hashed, since
    providers know the uid.
    """
    digest = hashlib.sha256(b"terminal event\0" + task_uid.encode()).digest()
    return "msg_" + base64.b32encode(digest)[:26].decode().lower()


def sign(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: one signature for each key, newest first.

    Separated by one space, with exactly one comma each: verifiers split on these.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)


def make_headers(
    keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return headers of an attempt; `timestamp` is its time in Unix seconds."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "gateway-callback/1",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(keys, message_id, timestamp, body),
    }
