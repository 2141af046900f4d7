"""Between the wire's fields and the specs of GatewayKey and GatewayGuardrail. Pure."""

from collections.abc import Mapping
from typing import Any

from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.accounts.guardrails import measure_fields
from gateway_core.api.key import MOST_METADATA
from gateway_core.api.limits import MOST_OBJECT_BYTES
from gateway_core.api.money import MICROS_PER_CENT

_FIELDS: Mapping[str, str] = {
    "name": "displayName",
    "description": "description",
    "disabled": "disabled",
    "expires_at": "expirationTime",
    "rpm_limit": "requestsPerMinute",
    "allowed_models": "allowedModels",
    "denied_models": "deniedModels",
    "allowed_providers": "allowedProviders",
    "denied_providers": "deniedProviders",
    "metadata": "metadata",
}
_CENTS, _WINDOW = "limit_cents", "limit_window"


def write_spec(values: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a new object's spec that a client decides. InvalidRequest."""
    given = {name: value for name, value in values.items() if value is not None}
    spec = {_FIELDS[name]: value for name, value in given.items() if name in _FIELDS}
    limit = merge_limit(None, given)
    spec = spec if limit is None else {**spec, "limit": limit}
    _check_size(spec)
    return spec


def write_patch(spec: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch of `spec` that a client's merge patch comes to. InvalidRequest.

    It says only what changes.
    """
    patch = {_FIELDS[name]: value for name, value in values.items() if name in _FIELDS}
    if _CENTS in values or _WINDOW in values:
        patch["limit"] = merge_limit(spec.get("limit"), values)
    patch = {name: value for name, value in patch.items() if value != spec.get(name)}
    merged, notes = {**spec, **patch}, patch.get("metadata")
    if notes is not None:
        left = {**(spec.get("metadata") or {}), **notes}
        merged["metadata"] = {name: value for name, value in left.items() if value is not None}
        if len(merged["metadata"]) > MOST_METADATA:
            raise refuse_fields({"metadata": [f"must have at most {MOST_METADATA} items"]})
    if patch:
        _check_size(merged)
    return patch


def _check_size(spec: Mapping[str, Any]) -> None:
    """Raises InvalidRequest that names the largest field where all together are too large."""
    sizes = measure_fields(spec)
    if sum(sizes.values()) + 1 > MOST_OBJECT_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        public = next(public for public, name in _FIELDS.items() if name == largest)
        text = f"makes more than {MOST_OBJECT_BYTES} bytes of JSON with the other fields"
        raise refuse_fields({public: [text]})


def merge_limit(
    limit: Mapping[str, Any] | None, values: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The limit after a change: an amount and its window, or neither (contract §9).

    To clear one of the two is to clear both. InvalidRequest where one is missing.
    """
    given = {name: values[name] for name in (_CENTS, _WINDOW) if name in values}
    if given and all(value is None for value in given.values()):
        return None
    cents, window = given.get(_CENTS), given.get(_WINDOW)
    micros = None if cents is None else cents * MICROS_PER_CENT
    if limit is not None:
        micros = micros if _CENTS in given else limit["micros"]
        window = window if _WINDOW in given else limit["window"]
    if (micros is None) is not (window is None):
        missing, other = (_CENTS, _WINDOW) if micros is None else (_WINDOW, _CENTS)
        raise refuse_fields({missing: [f"is required with {other}"]})
    return None if micros is None else {"micros": micros, "window": window}
