"""Keys whose plaintext the operator generates into a Secret (`spec.secretName`). Pure.

The Secret is written before the key's status. It carries its owner and the rotation it was written
for, so that reconciliation can resume from either state.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    API_VERSION,
    KEY_LABEL,
    ROTATIONS_ANNOTATION,
)
from gateway_core.api.key import GatewayKey, KeyToken, Secret, digest, hint_of, parse_key
from gateway_core.api.times import format_time, parse_time

PLAINTEXT = "api-key"
"""The Secret's entry with the key."""
MOST_DIGITS = 7
"""Longest `spec.rotations`."""


def is_writable(secret: Secret, key: GatewayKey) -> bool:
    """Return whether the Secret was created for this key; other Secrets are never overwritten."""
    return secret.labels.get(KEY_LABEL) == key.metadata.name


def read_plaintext(secret: Secret, key: GatewayKey) -> str | None:
    """Return the key in the Secret; None where a new one has to be generated.

    That is: it is damaged, or of the other class; it was written for a deleted GatewayKey of the
    same name; `spec.rotations` was raised since; or it has been rotated out.
    """
    text = secret.data.get(PLAINTEXT, b"").decode(errors="replace")
    parsed = parse_key(text)
    if parsed is None or parsed.key_class != key.spec.class_:
        return None
    if all(owner.get("uid") != key.metadata.uid for owner in secret.owners):
        return None
    if secret.annotations.get(ROTATIONS_ANNOTATION) != str(key.spec.rotations):
        return None
    outgoing = (t for t in key.status.tokens or () if t.expiration_time is not None)
    return None if any(token.id == parsed.id for token in outgoing) else text


def is_ahead(secret: Secret, key: GatewayKey) -> bool:
    """Return whether the Secret is of a later rotation than this version of the key asks for.

    Then another replica has seen a newer version, and a write would undo its rotation.
    """
    written = secret.annotations.get(ROTATIONS_ANNOTATION, "")
    is_mine = any(owner.get("uid") == key.metadata.uid for owner in secret.owners)
    is_count = written.isascii() and written.isdigit() and len(written) <= MOST_DIGITS
    return is_mine and is_count and int(written) > key.spec.rotations


def describe_secret(key: GatewayKey, plaintext: str, old: Secret | None) -> Secret:
    """Return the Secret to write; `old` is the existing one.

    The key owns it, so that it is deleted with the key.
    """
    name, kind = key.metadata.name, GatewayKey.kind_name
    mine = {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": key.metadata.uid}
    secret = old or Secret(name=key.spec.secret_name or "", data={})
    # owners of other kinds are kept: they may be set by the tool that manages the Secret
    others = tuple(owner for owner in secret.owners if owner.get("kind") != kind)
    return replace(
        secret,
        data={PLAINTEXT: plaintext.encode()},
        labels={**secret.labels, KEY_LABEL: name, ACCOUNT_LABEL: key.spec.account_name},
        annotations={**secret.annotations, ROTATIONS_ANNOTATION: str(key.spec.rotations)},
        owners=(*others, mine),
    )


def plan_status(
    key: GatewayKey, plaintext: str, peppers: Mapping[int, bytes], now: datetime
) -> dict[str, Any]:
    """Return the status fields to change once the Secret has `plaintext`.

    The previous token stays valid for `spec.overlapSeconds`; expired tokens are removed.
    """
    before = key.status.tokens or []
    current = next((token for token in before if _opens(token, plaintext, peppers)), None)
    if current is not None:
        tokens = before
    else:
        new = _describe_token(plaintext, peppers)
        tokens = [new, *(token for token in _expire_current(key, now) if token.id != new.id)]
    tokens = drop_expired(tokens, now)
    changes: dict[str, Any] = {}
    if tokens != before:
        changes["tokens"] = [token.model_dump(by_alias=True, exclude_none=True) for token in tokens]
    if key.status.rotations != key.spec.rotations:
        changes["rotations"] = key.spec.rotations
    if key.status.secret_name != key.spec.secret_name:
        changes["secretName"] = key.spec.secret_name
    return changes


def drop_expired(tokens: list[KeyToken], now: datetime) -> list[KeyToken]:
    """Return the tokens that have not expired."""
    return [t for t in tokens if not t.expiration_time or parse_time(t.expiration_time) > now]


def is_current(key: GatewayKey, now: datetime) -> bool:
    """Return whether the status matches the spec."""
    status, spec = key.status, key.spec
    return (
        bool(status.tokens)
        and (status.rotations, status.secret_name) == (spec.rotations, spec.secret_name)
        and drop_expired(status.tokens or [], now) == status.tokens
    )


def _opens(token: KeyToken, plaintext: str, peppers: Mapping[int, bytes]) -> bool:
    pepper = peppers.get(token.pepper_version)
    return (
        token.expiration_time is None
        and pepper is not None
        and token.digest == digest(plaintext, pepper)
    )


def _expire_current(key: GatewayKey, now: datetime) -> list[KeyToken]:
    """Return the previous token with its expiration; none without an overlap."""
    current = [token for token in key.status.tokens or () if token.expiration_time is None]
    if not current or not key.spec.overlap_seconds:
        return []
    end = format_time(now + timedelta(seconds=key.spec.overlap_seconds))
    return [current[0].model_copy(update={"expiration_time": end})]


def _describe_token(plaintext: str, peppers: Mapping[int, bytes]) -> KeyToken:
    parsed = parse_key(plaintext)
    assert parsed is not None
    version = max(peppers)
    return KeyToken(
        id=parsed.id,
        digest=digest(plaintext, peppers[version]),
        pepper_version=version,
        hint=hint_of(plaintext),
    )
