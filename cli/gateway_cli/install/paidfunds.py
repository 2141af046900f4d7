"""Applying an account takes back no money that was paid in since its file was written.

`spec.funds` is everything ever paid in, and both files and `gatewayctl fund` write it. An applied
figure that is lower than what is there is therefore raised to it, unless lowering is asked for.
"""

import copy
from collections.abc import Callable
from typing import Any

from gateway_cli.admin.documents import dollars
from gateway_cli.cluster import Object
from gateway_cli.cluster.calls import FIELD_MANAGER
from gateway_core.contract.account import GatewayAccount
from gateway_core.contract.names import GROUP

POTS = ("paidMicros", "bonusMicros")


def is_account(obj: Object) -> bool:
    """Whether it is a GatewayAccount of this gateway."""
    group = str(obj["apiVersion"]).partition("/")[0]
    return (group, obj["kind"]) == (GROUP, GatewayAccount.kind_name)


def keep_funds(obj: Object, say: Callable[[str], None], present: Object | None) -> Object:
    """The account to apply, none of its funds lower than in `present`; tells `say` what it kept.

    Funds that an earlier file named and this one does not stay in it, since what is applied no more
    is taken away. It bears the version that was read, so that a payment in between is a conflict.
    """
    if present is None or not isinstance(obj.get("spec"), dict):
        return obj
    there = present["spec"].get("funds") or {}
    given = obj["spec"].get("funds") or {}
    if not isinstance(given, dict):
        return obj
    kept = {
        pot: there[pot]
        for pot in POTS
        if pot in there and _is_lower(given, pot, there[pot], applied=_list_applied(present))
    }
    for pot, micros in kept.items():
        said = f"names {dollars(given[pot])} USD" if given.get(pot) is not None else "names none"
        say(
            f"! {obj['metadata']['name']} keeps its funds.{pot} of {dollars(micros)} USD; the file"
            f" {said}, and --lower-funds would take the difference away"
        )
    adapted = copy.deepcopy(obj)
    if kept:
        adapted["spec"]["funds"] = {**given, **kept}
    version = present["metadata"]["resourceVersion"]
    adapted["metadata"].setdefault("resourceVersion", version)
    return adapted


def _is_lower(given: dict[str, Any], pot: str, there: int, *, applied: set[str]) -> bool:
    """Whether applying `given` would leave less in the pot than is there."""
    if given.get(pot) is None:
        return pot in applied and there > 0
    # what is no number is for the API server to refuse
    return isinstance(given[pot], int) and given[pot] < there


def _list_applied(present: Object) -> set[str]:
    """The pots that an earlier `gatewayctl apply` named."""
    return {
        pot
        for entry in present["metadata"].get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"
        for pot in POTS
        if f"f:{pot}" in entry.get("fieldsV1", {}).get("f:spec", {}).get("f:funds", {})
    }
