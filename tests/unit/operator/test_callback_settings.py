"""What a deployment may choose for callbacks, and how a mistake is told."""

from ipaddress import ip_network

import pytest
from pydantic import ValidationError

from gateway_core.callbacks.schedule import SCHEDULE
from gateway_operator.settings import Settings


@pytest.fixture(autouse=True)
def needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE_DIR", "SECRETS_DIR", "MEDIA_URL"):
        monkeypatch.setenv(f"GATEWAY_{name}", "x")


def read() -> Settings:
    return Settings()  # pyright: ignore[reportCallIssue]


def test_defaults_are_the_contracts() -> None:
    assert read().callback_schedule == SCHEDULE
    assert read().callback_timeout_seconds == 15
    assert read().callback_allowed_cidrs == read().denied_cidrs == ()
    assert read().fetch_allowed_cidrs == ()


def test_lists_have_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_CALLBACK_SCHEDULE", "0, 1.5,60,")
    monkeypatch.setenv("GATEWAY_DENIED_CIDRS", "203.0.113.0/24, 2001:db8::/32")
    monkeypatch.setenv("GATEWAY_FETCH_ALLOWED_CIDRS", "10.0.0.0/8")
    assert read().callback_schedule == (0, 1.5, 60)
    assert read().callback_allowed_cidrs == ()
    assert read().fetch_allowed_cidrs == (ip_network("10.0.0.0/8"),)
    assert read().denied_cidrs == (ip_network("203.0.113.0/24"), ip_network("2001:db8::/32"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CALLBACK_SCHEDULE", ""),
        ("CALLBACK_SCHEDULE", "0,-1"),
        ("CALLBACK_SCHEDULE", "600,600"),
        ("CALLBACK_SCHEDULE", "soon"),
        ("CALLBACK_SCHEDULE", "0,inf"),
        ("CALLBACK_SCHEDULE", "nan"),
        ("CALLBACK_TIMEOUT_SECONDS", "0"),
        ("CALLBACK_TIMEOUT_SECONDS", "3600"),
        ("DENIED_CIDRS", "everything"),
        ("CALLBACK_ALLOWED_CIDRS", "10.0.0.1/8"),
        ("FETCH_ALLOWED_CIDRS", "inside"),
    ],
)
def test_invalid_schedules_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"GATEWAY_{name}", value)
    with pytest.raises(ValidationError):
        read()
