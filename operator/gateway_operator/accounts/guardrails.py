"""Readiness of guardrails: whether they apply to the keys that they name."""

from collections.abc import Iterable

from pydantic import ValidationError

from gateway_core.accounts.guardrails import find_excess, shorten
from gateway_core.api.account import GatewayAccount
from gateway_core.api.conditions import Reason
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import MOST_GUARDRAILS
from gateway_core.api.resource import Object
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_operator.accounts.accounts import check_account
from gateway_operator.accounts.readiness import Finding, Ref, refer


def project_guardrail(obj: Object) -> GatewayGuardrail:
    """The guardrail of an object, without fields that the operator does not read.

    One beyond the bounds of contract §9.0 allows nothing, as in the API; nor does one that today's
    schema refuses: if it were dropped, its keys would be unrestricted.
    """
    excess = find_excess(obj["spec"])
    short = shorten(obj, keep=excess is None)
    if excess is None:
        try:
            return GatewayGuardrail.read(short)
        except ValidationError as error:
            excess = f"{error.error_count()} fields are invalid"
            names = ("accountName", "displayName", "keyNames")
            spec = {name: obj["spec"][name] for name in names if name in obj["spec"]}
            short = {**short, "spec": spec, "status": {}}
    short["spec"]["allowedModels"] = []
    return GatewayGuardrail.read(short, excess)


class Guardrails:
    """Guardrails compete for keys: of too many for a key the newest one is not ready."""

    kind = GatewayGuardrail
    contested = GatewayKey.plural

    def __init__(
        self,
        table: Cache[GatewayGuardrail],
        accounts: Cache[GatewayAccount],
        keys: Cache[GatewayKey],
    ) -> None:
        self.table = table
        self._accounts = accounts
        self._keys = keys
        self._names_of: dict[str, set[str]] = {}
        self._keys_of: dict[str, tuple[str, ...]] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def list_references(self, obj: GatewayGuardrail) -> Iterable[Ref]:
        """Its account and its keys."""
        keys = [refer(GatewayKey, name) for name in obj.spec.key_names or ()]
        return [refer(GatewayAccount, obj.spec.account_name), *keys]

    async def check(self, obj: GatewayGuardrail) -> Finding:
        """Check its account, its keys, and that no key has too many guardrails."""
        if obj.excess is not None:
            text = f"{obj.excess}: its keys may call nothing until it has less"
            return Finding(Problem(Reason.TOO_LARGE, text))
        account = obj.spec.account_name
        problem = check_account(self._accounts.get(account), account)
        names = obj.spec.key_names or ()
        problem = problem or next(filter(None, (self._check_place(obj, n) for n in names)), None)
        problem = problem or next(filter(None, (self._check_key(obj, n) for n in names)), None)
        return Finding(problem)

    def _check_place(self, obj: GatewayGuardrail, key: str) -> Problem | None:
        found = [self.table.get(name) for name in self._names_of.get(key, ())]
        before = [
            other
            for other in found
            if other is not None
            and other.spec.account_name == obj.spec.account_name
            and _rank(other) < _rank(obj)
        ]
        if len(before) < MOST_GUARDRAILS:
            return None
        text = f"{key} has {MOST_GUARDRAILS} guardrails without this one: its calls are refused"
        return Problem(Reason.TOO_MANY_GUARDRAILS, text)

    def _check_key(self, obj: GatewayGuardrail, key: str) -> Problem | None:
        found = self._keys.get(key)
        if found is not None and found.spec.account_name == obj.spec.account_name:
            return None
        text = f"account {obj.spec.account_name} has no GatewayKey {key}; it holds for the others"
        return Problem(Reason.KEY_NOT_FOUND, text)

    def _follow(self, name: str) -> None:
        for key in self._keys_of.pop(name, ()):
            names = self._names_of[key]
            names.discard(name)
            if not names:
                del self._names_of[key]
        obj = self.table.get(name)
        if obj is not None:
            self._keys_of[name] = tuple(dict.fromkeys(obj.spec.key_names or ()))
            for key in self._keys_of[name]:
                self._names_of.setdefault(key, set()).add(name)


def _rank(obj: GatewayGuardrail) -> tuple[str, str]:
    """Which was made first."""
    return obj.metadata.creation_timestamp or "", obj.metadata.name
