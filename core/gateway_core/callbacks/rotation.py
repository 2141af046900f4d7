"""Rotation of the secret that an account's callbacks are signed with (contract §11.2). Pure.

A rotation refers to another Secret; the one before signs beside it for 24 hours. No Secret that
signs is changed in place: receivers that have the old one would refuse all.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gateway_core.api.times import format_time, parse_time
from gateway_core.callbacks.signing import SECRET_PREFIX

OVERLAP = timedelta(hours=24)
ENTRY = "secret"


class RotationUnderWay(Exception):
    """The secret before signs until `until`, and would cease to."""

    def __init__(self, name: str, until: str) -> None:
        super().__init__(f"Secret {name} signs until {until}")
        self.name = name
        self.until = until


def refuse_second(spec: Mapping[str, Any], now: datetime) -> None:
    """Raise RotationUnderWay where a rotation would end a secret that receivers may still have."""
    previous = spec.get("previousWebhookSecretRef")
    if previous is not None and parse_time(previous["expirationTime"]) > now:
        raise RotationUnderWay(previous["name"], previous["expirationTime"])


def plan_rotation(spec: Mapping[str, Any], name: str, now: datetime) -> dict[str, Any] | None:
    """Return the change of an account's spec that makes the Secret `name` sign.

    Return None where it does.
    """
    old = spec.get("webhookSecretRef")
    if old and old["name"] == name:
        return None
    until = {"expirationTime": format_time(now + OVERLAP)}
    return {
        "webhookSecretRef": {"name": name, "key": ENTRY},
        "previousWebhookSecretRef": {**old, **until} if old else None,
    }


def name_secrets(account: str) -> tuple[str, str]:
    """Return the two Secrets between which rotations by members of the account alternate."""
    return f"{account}-webhook-a", f"{account}-webhook-b"


def choose_name(account: str, spec: Mapping[str, Any]) -> str:
    """Return the one of the two that is not the newest to sign."""
    first, second = name_secrets(account)
    return second if (spec.get("webhookSecretRef") or {}).get("name") == first else first


def derive_secret(id_key: bytes, account: str, nonce: str) -> str:
    """Return the `whsec_…` secret that both processes know by a nonce, so that it is never sent."""
    key = hmac.digest(id_key, b"webhook secrets", hashlib.sha256)
    digest = hmac.digest(key, f"{account}\0{nonce}".encode(), hashlib.sha256)
    return SECRET_PREFIX + base64.b64encode(digest).decode()
