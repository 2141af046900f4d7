"""What a code adapter says of itself, checked before anything relies on it; used by `plugins`."""

from dataclasses import dataclass
from typing import Any

from gateway_core.ports.adapters import AdapterFailed
from gateway_core.ports.upstream import SubmissionGuarantee, Upstream

_MOST_SUBMIT_SECONDS = 600.0
_INTERVALS = (0.5, 3600.0)


@dataclass(frozen=True, slots=True)
class Traits:
    """The attributes of `ports.upstream.Upstream`."""

    guarantee: SubmissionGuarantee
    can_cancel: bool
    can_find: bool
    max_output_bytes: int
    submit_seconds: float
    poll_interval: tuple[float, float]
    notified_interval: float | None


def read_traits(adapter: Upstream) -> Traits:
    """The traits. AdapterFailed for what cannot be so."""
    guarantee = adapter.guarantee
    if not isinstance(guarantee, SubmissionGuarantee):
        raise AdapterFailed("the adapter's guarantee is no SubmissionGuarantee")
    if guarantee is SubmissionGuarantee.LOOKUP and not adapter.can_find:
        raise AdapterFailed("the adapter guarantees a look-up and has none")
    least, most = adapter.poll_interval
    notified = adapter.notified_interval
    return Traits(
        guarantee=guarantee,
        can_cancel=bool(adapter.can_cancel),
        can_find=bool(adapter.can_find),
        max_output_bytes=int(_read("max_output_bytes", adapter.max_output_bytes, 1, 2**40)),
        submit_seconds=_read("submit_seconds", adapter.submit_seconds, 1, _MOST_SUBMIT_SECONDS),
        poll_interval=(
            _read("poll_interval", least, *_INTERVALS),
            _read("poll_interval", most, *_INTERVALS),
        ),
        notified_interval=None
        if notified is None
        else _read("notified_interval", notified, *_INTERVALS),
    )


def _read(name: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise AdapterFailed(f"the adapter's {name} must be a number from {least:g} to {most:g}")
    return float(value)
