"""The key that a run made with kubectl names, judged as REST judges the one that a call brings.

Used by the intakes of tasks and batches, for those that the API has not admitted.
"""

from typing import Any

from gateway_core.accounts.guardrails import (
    KEY_TITLE,
    Guardrail,
    Policies,
    Policy,
    read_guardrail,
    read_rules,
)
from gateway_core.accounts.roles import Act, act_as, refuse_key
from gateway_core.api.conditions import Reason
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import MOST_GUARDRAILS
from gateway_core.kube.informer import Cache
from gateway_operator.accounts.keys import check_creator, check_key, find_role
from gateway_operator.tasks.holds import Payer
from gateway_operator.tasks.inputs import Unacceptable
from gateway_operator.tasks.tools import Tools


class Unseen(Exception):
    """The task names what may not have been seen here yet, and does not fit what has."""

    def __init__(self, refusal: Unacceptable) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def find_policy(tools: Tools, request: Payer) -> Policy | None:
    """The policy that a run with this request is under; None where it names no key.

    Raises:
        Unacceptable: REST would have refused it, with this key.
        Unseen: it names a key that is not there, or other guardrails than its key has.
    """
    recorded = frozenset(request.guardrail_names or ())
    if request.key_name is None:
        if recorded:
            raise _refuse("spec.request.guardrailNames goes with spec.request.keyName only.")
        return None
    key = tools.keys.get(request.key_name)
    if key is None or key.spec.account_name != request.account_name:
        text = f"Key {request.key_name} does not exist in account {request.account_name}."
        raise Unseen(_refuse(text))
    _check_open(tools, key)
    name = key.metadata.name
    policy = tools.policies.find(name, key.spec.account_name, read_rules(dump_spec(key)))
    if policy.closed:
        raise _refuse(f"Key {name} has more than {MOST_GUARDRAILS} guardrails.")
    if recorded != frozenset(policy.guardrail_names):
        named = ", ".join(policy.guardrail_names) or "none"
        text = f"The guardrails of key {name} are: {named}."
        raise Unseen(_refuse(f"{text} spec.request.guardrailNames must name them."))
    return policy


def check_model(policy: Policy | None, service: str, model_id: str) -> None:
    """Raises Unacceptable where the key or a guardrail does not allow the model."""
    title = policy.find_refusal(service, model_id) if policy else None
    if policy is not None and title is not None:
        # an admin may make tasks of many keys: he reads which
        title = f"key {policy.key_name}" if title == KEY_TITLE else title
        text = f"Model {model_id} is not allowed for {title}."
        raise Unacceptable(Reason.MODEL_NOT_ALLOWED, text)


def follow_policies(
    keys: Cache[GatewayKey], guardrails: Cache[GatewayGuardrail]
) -> Policies[GatewayGuardrail]:
    """The policies of the operator's tables."""
    return Policies(keys, guardrails, _read_guardrail)


def dump_spec(obj: GatewayKey | GatewayGuardrail) -> dict[str, Any]:
    """The spec as it is in the object, which the rules are read from."""
    return obj.spec.model_dump(by_alias=True, exclude_none=True)


def _read_guardrail(obj: GatewayGuardrail) -> Guardrail:
    return read_guardrail({"metadata": {"name": obj.metadata.name}, "spec": dump_spec(obj)})


def _check_open(tools: Tools, key: GatewayKey) -> None:
    spec, name = key.spec, key.metadata.name
    problem = check_key(key, tools.now()) or check_creator(key, tools.users)
    if problem is not None:
        raise _refuse(f"Key {name} opens nothing: {problem.message}.")
    creator = tools.users.get(spec.created_by) if spec.created_by else None
    role = find_role(creator, spec.account_name) if creator else None
    refusal = refuse_key(Act.CREATE, spec.class_, act_as(spec.class_, role))
    if refusal == "wrong_credential_class":
        raise _refuse(f"Key {name} is a management key, which calls no model.")
    if refusal is not None:
        raise _refuse(f"Key {name} may create nothing: who made it is a {role}.")


def _refuse(text: str) -> Unacceptable:
    return Unacceptable(Reason.INVALID_REQUEST, text)
