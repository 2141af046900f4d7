"""Rotation of webhook secrets: which Secret signs next, and that none is lost before its time."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway_core.callbacks.rotation import (
    OVERLAP,
    RotationUnderWay,
    choose_name,
    derive_secret,
    plan_rotation,
    refuse_second,
)
from gateway_core.callbacks.signing import read_secret

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


def test_rotations_alternate_and_the_previous_secret_signs_for_a_day() -> None:
    spec: dict[str, object] = {"webhookSecretRef": {"name": "declared", "key": "hook"}}
    names, now = [], NOW
    for _ in range(3):
        refuse_second(spec, now)
        name = choose_name("acme", spec)
        before = spec["webhookSecretRef"]
        spec = plan_rotation(spec, name, now) or {}
        assert spec["previousWebhookSecretRef"]["name"] == before["name"]
        with pytest.raises(RotationUnderWay, match=before["name"]):
            refuse_second(spec, now + OVERLAP - timedelta(seconds=1))
        assert plan_rotation(spec, name, now) is None
        names.append(name)
        now += OVERLAP
    assert names == ["acme-webhook-a", "acme-webhook-b", "acme-webhook-a"]


def test_first_secret_has_none_before_it() -> None:
    assert plan_rotation({}, "acme-webhook-a", NOW) == {
        "webhookSecretRef": {"name": "acme-webhook-a", "key": "secret"},
        "previousWebhookSecretRef": None,
    }


def test_secret_is_derived_from_key_account_and_nonce() -> None:
    secret = derive_secret(b"k" * 32, "acme", "nonce")
    assert len(read_secret(secret)) == 32
    assert secret == derive_secret(b"k" * 32, "acme", "nonce")
    others = {
        derive_secret(b"x" * 32, "acme", "nonce"),
        derive_secret(b"k" * 32, "acm", "enonce"),
        derive_secret(b"k" * 32, "acme", "nonc"),
    }
    assert len(others | {secret}) == 4
