"""What a key and its guardrails let through: models, providers, money in a window, calls a minute.

Pure (contract §9.0, §9.1). The API and the operator make a `Policy` of all that holds for one key.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway_core.contract.limits import (
    ENTRY_PATTERN,
    MOST_ENTRIES,
    MOST_ENTRY_CHARACTERS,
    MOST_OBJECT_BYTES,
    Window,
)
from gateway_core.contract.names import REVOKED_AT_ANNOTATION

_ANY_REST = "*"
_ENTRY = re.compile(ENTRY_PATTERN)
LISTS = ("allowedModels", "deniedModels", "allowedProviders", "deniedProviders")
"""Fields of the specs of keys and guardrails that list models or providers."""
_COUNTED = (
    "displayName",
    "description",
    "disabled",
    "expirationTime",
    "limit",
    "requestsPerMinute",
    *LISTS,
    "metadata",
)
"""What a client decides of a key or guardrail. A guardrail's keys have a bound of their own."""


def measure_fields(spec: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of JSON of each field that counts, its name included."""
    return {
        name: len(orjson.dumps({name: spec[name]})) - 1
        for name in _COUNTED
        if spec.get(name) is not None
    }


def find_excess(spec: Mapping[str, Any]) -> str | None:
    """What of a key's or guardrail's spec is beyond the bounds of contract §9.0; None for nothing.

    The schema refuses such a spec; one that was stored under an older schema may be as large as
    etcd takes, so no process keeps it in memory.
    """
    for name in LISTS:
        entries = spec.get(name) or ()
        if len(entries) > MOST_ENTRIES:
            return f"spec.{name} has more than {MOST_ENTRIES} entries"
        if any(len(e) > MOST_ENTRY_CHARACTERS or not _ENTRY.fullmatch(e) for e in entries):
            return (
                f"spec.{name} has an entry other than 1 to {MOST_ENTRY_CHARACTERS} printable ASCII"
                " characters"
            )
    if sum(measure_fields(spec).values()) + 1 > MOST_OBJECT_BYTES:
        return f"spec has more than {MOST_OBJECT_BYTES} bytes as JSON"
    return None


def shorten(obj: Mapping[str, Any], *, keep: bool = True) -> dict[str, Any]:
    """An object of a key or guardrail without what no process but the API's routes reads.

    Its annotations save that of the revocation, and the client's notes; without `keep` also its
    lists of models and providers.
    """
    meta = obj["metadata"]
    noted = (meta.get("annotations") or {}).get(REVOKED_AT_ANNOTATION)
    dropped = {"metadata", "description", *(() if keep else LISTS)}
    return {
        **obj,
        "metadata": {
            **{name: value for name, value in meta.items() if name != "managedFields"},
            "annotations": {} if noted is None else {REVOKED_AT_ANNOTATION: noted},
        },
        "spec": {name: value for name, value in obj["spec"].items() if name not in dropped},
    }


@dataclass(frozen=True, slots=True)
class NameList:
    """A list of names and of beginnings; an empty one has none."""

    exact: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.exact or name.startswith(self.beginnings)


def read_names(entries: Iterable[str] | None) -> NameList | None:
    """The list of a spec's entries, each exact or `prefix*`; None restricts nothing."""
    if entries is None:
        return None
    listed = tuple(entries)
    return NameList(
        frozenset(entry for entry in listed if not entry.endswith(_ANY_REST)),
        tuple(entry.removesuffix(_ANY_REST) for entry in listed if entry.endswith(_ANY_REST)),
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """What one key or guardrail says of calls; None restricts nothing. `limit` is micro-dollars."""

    limit: int | None = None
    window: Window | None = None
    requests_per_minute: int | None = None
    allowed_models: NameList | None = None
    denied_models: NameList | None = None
    allowed_providers: NameList | None = None
    denied_providers: NameList | None = None

    def admit(self, service: str, model_id: str) -> bool:
        """Whether the model may be called at the provider segment `service`."""
        return _passes(model_id, self.allowed_models, self.denied_models) and _passes(
            service, self.allowed_providers, self.denied_providers
        )


NO_RULES = Rules()
NOTHING_ALLOWED = Rules(allowed_models=NameList())
"""What a guardrail says whose own rules are beyond the bounds: it must not open what it closed."""


def read_rules(spec: Mapping[str, Any]) -> Rules:
    """The rules in the spec of a GatewayKey or GatewayGuardrail."""
    limit = spec.get("limit") or {}
    rules = Rules(
        limit=limit.get("micros"),
        window=limit.get("window"),
        requests_per_minute=spec.get("requestsPerMinute"),
        allowed_models=read_names(spec.get("allowedModels")),
        denied_models=read_names(spec.get("deniedModels")),
        allowed_providers=read_names(spec.get("allowedProviders")),
        denied_providers=read_names(spec.get("deniedProviders")),
    )
    # most keys have none, and a process holds them all
    return NO_RULES if rules == NO_RULES else rules


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A GatewayGuardrail, as far as it decides on calls."""

    name: str
    account: str
    display_name: str
    key_names: frozenset[str]
    rules: Rules


def read_guardrail(obj: Mapping[str, Any]) -> Guardrail:
    """The guardrail of an object; one beyond the bounds allows nothing."""
    spec = obj["spec"]
    excess = find_excess(spec)
    return Guardrail(
        name=obj["metadata"]["name"],
        account=spec["accountName"],
        display_name=spec["displayName"],
        key_names=frozenset(spec.get("keyNames") or ()),
        rules=read_rules(spec) if excess is None else NOTHING_ALLOWED,
    )


def select_guardrails(
    guardrails: Iterable[Guardrail], *, account: str, key_name: str
) -> tuple[Guardrail, ...]:
    """Those that hold for a key of `account`, by name.

    One of another account does not, whatever its list of keys says: nobody restricts a stranger.
    """
    chosen = (g for g in guardrails if g.account == account and key_name in g.key_names)
    return tuple(sorted(chosen, key=lambda guardrail: guardrail.name))


def _passes(name: str, allowed: NameList | None, denied: NameList | None) -> bool:
    return (allowed is None or name in allowed) and (denied is None or name not in denied)
