"""Restrictions of a key: its own limits and those of its guardrails."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from gateway_core.accounts.changes import History, read_history
from gateway_core.api.errors import Forbidden
from gateway_core.api.ids import REVOKED_AT_ANNOTATION
from gateway_core.api.limits import (
    ENTRY_PATTERN,
    MOST_ENTRIES,
    MOST_ENTRY_CHARACTERS,
    MOST_GUARDRAILS,
    MOST_OBJECT_BYTES,
    Window,
    subject_of_guardrail,
    subject_of_key,
)
from gateway_core.billing.counters import Budget
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import Position, find_position

_ANY_REST = "*"
_ENTRY = re.compile(ENTRY_PATTERN)
LISTS = ("allowedModels", "deniedModels", "allowedProviders", "deniedProviders")
"""Spec fields of keys and guardrails that list models or providers."""
_COUNTED = (
    "displayName",
    "description",
    "disabled",
    "expirationTime",
    "limit",
    "requestsPerMinute",
    "cacheSeconds",
    *LISTS,
    "metadata",
)
"""Spec fields that clients set. A guardrail's keys have a bound of their own."""


def measure_fields(spec: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of JSON of each field that clients set, including its name."""
    return {
        name: len(orjson.dumps({name: spec[name]})) - 1
        for name in _COUNTED
        if spec.get(name) is not None
    }


def find_excess(spec: Mapping[str, Any]) -> str | None:
    """Return the part of a key's or guardrail's spec that exceeds the bounds of contract §9.0.

    The schema refuses such a spec, but one stored under an older schema may be as large as etcd
    allows, so no process keeps it in memory.
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
    """Return a key or guardrail without the fields that only the API's routes read, to save memory.

    Drops annotations other than the revocation's and the client's notes; without `keep` also the
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
    """Names and prefixes that a name is matched against."""

    exact: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.exact or name.startswith(self.beginnings)


def read_names(entries: Iterable[str] | None) -> NameList | None:
    """Return the list of a spec's entries, each a name or `prefix*`; None restricts nothing."""
    if entries is None:
        return None
    listed = tuple(entries)
    return NameList(
        frozenset(entry for entry in listed if not entry.endswith(_ANY_REST)),
        tuple(entry.removesuffix(_ANY_REST) for entry in listed if entry.endswith(_ANY_REST)),
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """Restrictions of one key or guardrail; None restricts nothing. `limit` is micro-dollars."""

    limit: int | None = None
    window: Window | None = None
    requests_per_minute: int | None = None
    allowed_models: NameList | None = None
    denied_models: NameList | None = None
    allowed_providers: NameList | None = None
    denied_providers: NameList | None = None
    cache_seconds: int | None = None

    def admit(self, service: str, model_id: str) -> bool:
        """Return whether calls of the model at the provider segment `service` are allowed."""
        return _passes(model_id, self.allowed_models, self.denied_models) and _passes(
            service, self.allowed_providers, self.denied_providers
        )


NO_RULES = Rules()
NOTHING_ALLOWED = Rules(allowed_models=NameList())
"""Rules of a guardrail beyond the bounds: it must not allow what it may have forbidden."""


def read_rules(spec: Mapping[str, Any]) -> Rules:
    """Return the rules in the spec of a GatewayKey or GatewayGuardrail."""
    limit = spec.get("limit") or {}
    rules = Rules(
        limit=limit.get("micros"),
        window=limit.get("window"),
        requests_per_minute=spec.get("requestsPerMinute"),
        allowed_models=read_names(spec.get("allowedModels")),
        denied_models=read_names(spec.get("deniedModels")),
        allowed_providers=read_names(spec.get("allowedProviders")),
        denied_providers=read_names(spec.get("deniedProviders")),
        cache_seconds=spec.get("cacheSeconds"),
    )
    # shared: most keys have no rules, and a process keeps all keys in memory
    return NO_RULES if rules == NO_RULES else rules


@dataclass(frozen=True, slots=True)
class Guardrail:
    """The parts of a GatewayGuardrail that restrict calls."""

    name: str
    account: str
    display_name: str
    key_names: frozenset[str]
    rules: Rules
    shown: "Shown | None" = None


@dataclass(frozen=True, slots=True)
class Shown:
    """What pages show of a key or guardrail beside that; `used_at` and `hint` are of keys."""

    position: Position
    history: History
    is_disabled: bool = False
    hint: str = ""
    used_at: str = ""


def read_shown(obj: Mapping[str, Any]) -> Shown:
    """Return what pages show of a GatewayKey or GatewayGuardrail."""
    spec, status = obj["spec"], obj.get("status") or {}
    return Shown(
        find_position(obj),
        read_history(obj),
        spec.get("disabled", False),
        find_hint(spec, status),
        status.get("lastUsedTime") or "",
    )


def find_hint(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Hint of a key's lasting token; empty before the operator has made one."""
    tokens = spec.get("tokens") or status.get("tokens") or ()
    lasting = [token for token in tokens if "expirationTime" not in token]
    return next((token["hint"] for token in (*lasting, *tokens)), "")


def read_guardrail(obj: Mapping[str, Any], *, shows: bool = False) -> Guardrail:
    """Return the guardrail of an object; beyond the bounds it allows nothing.

    `shows`: with what pages show, which takes some 500 bytes.
    """
    spec = obj["spec"]
    excess = find_excess(spec)
    return Guardrail(
        name=obj["metadata"]["name"],
        account=spec["accountName"],
        display_name=spec["displayName"],
        key_names=frozenset(spec.get("keyNames") or ()),
        rules=read_rules(spec) if excess is None else NOTHING_ALLOWED,
        shown=read_shown(obj) if shows else None,
    )


def select_guardrails(
    guardrails: Iterable[Guardrail], *, account: str, key_name: str
) -> tuple[Guardrail, ...]:
    """Return the guardrails of `account` that list the key, by name.

    Another account's guardrail never applies, even if it lists the key.
    """
    chosen = (g for g in guardrails if g.account == account and key_name in g.key_names)
    return tuple(sorted(chosen, key=lambda guardrail: guardrail.name))


def _passes(name: str, allowed: NameList | None, denied: NameList | None) -> bool:
    return (allowed is None or name in allowed) and (denied is None or name not in denied)


T = TypeVar("T")

KEY_TITLE = "this key"


@dataclass(frozen=True, slots=True)
class CacheScope:
    """The key or guardrail (`subject`) whose calls share kept answers, and for how many seconds."""

    subject: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Policy:
    """All restrictions of a key's calls; each must allow a call.

    Calls are recorded with `guardrail_names`, their money counts under `subjects`
    (`api.limits.list_subjects`), and the counters check `budgets`; `limited` is whether one of
    these limits money. A key with more guardrails than it may have is `closed`: it is undefined
    which of them apply, so no call is allowed. `cache` is None where no answers are kept.
    """

    key_name: str
    guardrail_names: tuple[str, ...]
    subjects: tuple[str, ...]
    budgets: tuple[Budget, ...]
    limited: bool
    closed: bool
    cache: CacheScope | None
    _rules: tuple[tuple[str, str, Rules], ...]

    def find_refusal(self, service: str, model_id: str) -> str | None:
        """Return what forbids the model: `this key`, or a guardrail's display name.

        Return None if allowed.
        """
        return next(
            (title for _, title, rules in self._rules if not rules.admit(service, model_id)), None
        )

    def allows(self, service: str, model_id: str) -> bool:
        """Return whether a call of the model at `service` is allowed."""
        return not self.closed and self.find_refusal(service, model_id) is None

    def check(self, service: str, model_id: str) -> None:
        """Raise Forbidden where a call of the model at `service` is not allowed (§7.4)."""
        if self.closed:
            raise _refuse(
                f"This key has more than {MOST_GUARDRAILS} guardrails, so nothing can be called"
                " with it: take it out of some."
            )
        title = self.find_refusal(service, model_id)
        if title is not None:
            raise _refuse(f"Model {model_id} is not allowed for {title}.")

    def name_subject(self, subject: str) -> str:
        """Display name of a subject of this policy."""
        return next((title for known, title, _ in self._rules if known == subject), "a guardrail")


def build_policy(key_name: str, rules: Rules, guardrails: Iterable[Guardrail]) -> Policy:
    """Return the policy of a key with these rules and guardrails."""
    chosen = tuple(guardrails)
    closed = len(chosen) > MOST_GUARDRAILS
    parts = [(subject_of_key(key_name), KEY_TITLE, rules)]
    if not closed:
        parts += [(subject_of_guardrail(g.name), name_guardrail(g), g.rules) for g in chosen]
    budgets = tuple(filter(None, (make_budget(subject, part) for subject, _, part in parts)))
    return Policy(
        key_name=key_name,
        guardrail_names=() if closed else tuple(g.name for g in chosen),
        subjects=tuple(subject for subject, _, _ in parts),
        budgets=budgets,
        limited=any(budget.limit is not None for budget in budgets),
        closed=closed,
        cache=_find_cache(parts),
        _rules=tuple(parts),
    )


def _find_cache(parts: Iterable[tuple[str, str, Rules]]) -> CacheScope | None:
    """Return the cache of the first that has one: the key, then its guardrails by name."""
    for subject, _, rules in parts:
        if rules.cache_seconds is not None:
            return CacheScope(subject, rules.cache_seconds)
    return None


def make_budget(subject: str, rules: Rules) -> Budget | None:
    """Return the budget of a key or guardrail; None without a limit and a rate."""
    if rules.limit is None and rules.requests_per_minute is None:
        return None
    return Budget(subject, rules.limit, rules.window, rules.requests_per_minute)


def name_guardrail(guardrail: Guardrail) -> str:
    """Display name of a guardrail in messages."""
    return f'guardrail "{guardrail.display_name}"'


class Policies(Generic[T]):
    """Policies by key, kept current with the informers; `read` converts a guardrail's entry."""

    def __init__(
        self, keys: Cache[Any], guardrails: Cache[T], read: Callable[[T], Guardrail]
    ) -> None:
        self._keys = keys
        self._guardrails = guardrails
        self._read = read
        self._seen: dict[str, Guardrail] = {}
        self._of_key: dict[str, dict[str, Guardrail]] = {}
        self._known: dict[str, tuple[Rules, str, Policy]] = {}
        for name in dict(guardrails.items()):
            self._follow(name)
        guardrails.subscribe(self._follow)
        # drops the policy of a deleted key
        keys.subscribe(self._forget)

    def find(self, key_name: str, account: str, rules: Rules) -> Policy:
        """Return the policy of a key of `account` with these rules and its current guardrails."""
        known = self._known.get(key_name)
        # compared by value, too: the key may have changed since, without an event here
        if known is not None and (known[0] is rules or known[0] == rules) and known[1] == account:
            return known[2]
        listed = self._of_key.get(key_name, {}).values()
        chosen = select_guardrails(listed, account=account, key_name=key_name)
        policy = build_policy(key_name, rules, chosen)
        # a grant of OAuth acts like a key and is none: its end would not drop the policy
        if self._keys.get(key_name) is not None:
            self._known[key_name] = rules, account, policy
        return policy

    def find_guardrail(self, name: str) -> Guardrail | None:
        """Return the guardrail of that name, if any."""
        return self._seen.get(name)

    def _forget(self, key_name: str) -> None:
        self._known.pop(key_name, None)

    def _follow(self, name: str) -> None:
        before = self._seen.pop(name, None)
        if before is not None:
            for key_name in before.key_names:
                self._forget(key_name)
                named = self._of_key[key_name]
                del named[name]
                if not named:
                    del self._of_key[key_name]
        entry = self._guardrails.get(name)
        if entry is None:
            return
        guardrail = self._seen[name] = self._read(entry)
        for key_name in guardrail.key_names:
            self._forget(key_name)
            self._of_key.setdefault(key_name, {})[name] = guardrail


def _refuse(message: str) -> Forbidden:
    return Forbidden(message, code="model_not_allowed", param="model")
