"""Keys whose plaintext the operator makes: whose a Secret is, and which tokens open. Pure.

The Secret is written first and the key's status after it. What the Secret says of itself (whose it
is, and after how many rotations it was written) therefore suffices to go on from either.
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
"""The entry of the Secret that holds the key."""
MOST_DIGITS = 7
"""Of `spec.rotations`."""


def is_writable(secret: Secret, key: GatewayKey) -> bool:
    """Whether the Secret was made for this key: no other one is ever overwritten."""
    return secret.labels.get(KEY_LABEL) == key.metadata.name


def read_plaintext(secret: Secret, key: GatewayKey) -> str | None:
    """The key in the Secret; None where a new one has to be made.

    That is: it is damaged, or of the other class; it was written for a GatewayKey of the same name
    that is gone; `spec.rotations` was raised since; or it is one that was rotated out.
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
    """Whether it was written for more rotations than this version of the key asks for.

    Another replica has seen a newer one then, and whoever writes would take its key away.
    """
    written = secret.annotations.get(ROTATIONS_ANNOTATION, "")
    is_mine = any(owner.get("uid") == key.metadata.uid for owner in secret.owners)
    is_count = written.isascii() and written.isdigit() and len(written) <= MOST_DIGITS
    return is_mine and is_count and int(written) > key.spec.rotations


def describe_secret(key: GatewayKey, plaintext: str, old: Secret | None) -> Secret:
    """The Secret to be written; `old` is the one that is there.

    The key owns it, so that it goes when the key does.
    """
    name, kind = key.metadata.name, GatewayKey.kind_name
    mine = {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": key.metadata.uid}
    secret = old or Secret(name=key.spec.secret_name or "", data={})
    others = tuple(owner for owner in secret.owners if owner.get("kind") != kind)
    return replace(
        secret,
        data={PLAINTEXT: plaintext.encode()},
        labels={**secret.labels, KEY_LABEL: name, ACCOUNT_LABEL: key.spec.account_name},
        annotations={**secret.annotations, ROTATIONS_ANNOTATION: str(key.spec.rotations)},
        owners=(*others, mine),
    )


def work_out_status(
    key: GatewayKey, plaintext: str, peppers: Mapping[int, bytes], now: datetime
) -> dict[str, Any]:
    """What of the status is not as it should be, now that the Secret holds `plaintext`.

    A token that was current goes on for `spec.overlapSeconds`; those whose time is over go.
    """
    before = key.status.tokens or []
    current = next((token for token in before if _opens(token, plaintext, peppers)), None)
    if current is not None:
        tokens = before
    else:
        new = _describe_token(plaintext, peppers)
        tokens = [new, *(token for token in _bow_out(key, now) if token.id != new.id)]
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
    """Those whose time is not over."""
    return [t for t in tokens if not t.expiration_time or parse_time(t.expiration_time) > now]


def is_current(key: GatewayKey, now: datetime) -> bool:
    """Whether the status, as far as it goes, is what the spec asks for."""
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


def _bow_out(key: GatewayKey, now: datetime) -> list[KeyToken]:
    """The token that was current, with the end of its time; none where there is no overlap."""
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
