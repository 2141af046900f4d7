"""The account and key that a run made with kubectl names, judged as REST judges those of a call.

Used for tasks and batches that the API has not admitted.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gateway_core.accounts.guardrails import (
    KEY_TITLE,
    Guardrail,
    Policies,
    Policy,
    Rules,
    build_policy,
    make_budget,
    name_guardrail,
    read_guardrail,
    read_rules,
)
from gateway_core.accounts.roles import Act, act_as, refuse_key
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.conditions import Reason
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import MOST_GUARDRAILS, subject_of_guardrail, subject_of_key
from gateway_core.billing.counters import Budget
from gateway_core.kube.informer import Cache
from gateway_operator.accounts.kinds import check_creator, check_key, find_role
from gateway_operator.billing.reservations import Payer

SIGHT_SECONDS = 10.0
"""How long objects that are applied together with a run may take to be seen here."""


class Refusal(Exception):
    """REST would have refused the run: why, in terms of a failed one.

    `limit` is `status.failure.limit`, where a credit limit is the reason.
    """

    def __init__(
        self, reason: Reason, message: str, limit: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.limit = limit


class NotYet(Exception):
    """Something that the run needs does not exist yet: try again after a pause."""


class Credentials:
    """Accounts, keys and policies of runs. `age` is that of a run, in seconds.

    NotYet is raised of a young run where what it names may not have been seen here.
    """

    def __init__(
        self,
        accounts: Cache[GatewayAccount],
        users: Cache[GatewayUser],
        keys: Cache[GatewayKey],
        guardrails: Cache[GatewayGuardrail],
        now: Callable[[], datetime],
    ) -> None:
        self.accounts = accounts
        self._users = users
        self._keys = keys
        self._policies = Policies(keys, guardrails, _read_guardrail)
        self._now = now

    def find_account(self, request: Payer, age: float) -> GatewayAccount:
        """Return the account that pays. Refusal, NotYet."""
        account = self.accounts.get(request.account_name)
        if account is None and age < SIGHT_SECONDS:
            raise NotYet
        if account is None or account.spec.suspended or account.metadata.deletion_timestamp:
            problem = "does not exist"
            if account is not None:
                is_suspended = account.metadata.deletion_timestamp is None
                problem = "is suspended" if is_suspended else "is being removed"
            raise _refuse(f"Account {request.account_name} {problem}.")
        return account

    def find_policy(self, request: Payer, age: float) -> Policy | None:
        """Return the policy that a run is under; None where it names no key. Refusal, NotYet."""
        recorded = frozenset(request.guardrail_names or ())
        if request.key_name is None:
            if recorded:
                raise _refuse("spec.request.guardrailNames goes with spec.request.keyName only.")
            return None
        key = self._keys.get(request.key_name)
        if key is None or key.spec.account_name != request.account_name:
            text = f"Key {request.key_name} does not exist in account {request.account_name}."
            raise _refuse_unseen(text, age)
        self._check_open(key)
        name = key.metadata.name
        policy = self._policies.find(name, key.spec.account_name, read_rules(_dump_spec(key)))
        if policy.closed:
            raise _refuse(f"Key {name} has more than {MOST_GUARDRAILS} guardrails.")
        if recorded != frozenset(policy.guardrail_names):
            named = ", ".join(policy.guardrail_names) or "none"
            text = f"The guardrails of key {name} are: {named}."
            raise _refuse_unseen(f"{text} spec.request.guardrailNames must name them.", age)
        return policy

    def recall_policy(self, request: Payer) -> Policy | None:
        """Return the policy of an admitted run: its key and its recorded guardrails.

        Their limits count as they are now. Those that are gone restrict nothing any more.
        """
        if request.key_name is None:
            return None
        rules = self._find_rules(request) or Rules()
        return build_policy(request.key_name, rules, self._list_guardrails(request))

    def list_budgets(self, request: Payer) -> list[Budget]:
        """Return the credit limits of all that the run counts under, as they are now.

        An object of another account that was made under the name since counts for nothing.
        """
        found = [(subject_of_guardrail(g.name), g.rules) for g in self._list_guardrails(request)]
        rules = self._find_rules(request)
        if rules is not None and request.key_name is not None:
            found.insert(0, (subject_of_key(request.key_name), rules))
        budgets = (make_budget(subject, rules) for subject, rules in found)
        return [b for b in budgets if b is not None and b.limit is not None]

    def name_subject(self, subject: str) -> str:
        """Return the display name of a key or guardrail that something counts under."""
        kind, _, name = subject.partition("/")
        guardrail = self._policies.find_guardrail(name) if kind == "guardrail" else None
        return KEY_TITLE if guardrail is None else name_guardrail(guardrail)

    def _find_rules(self, request: Payer) -> Rules | None:
        key = self._keys.get(request.key_name) if request.key_name else None
        if key is None or key.spec.account_name != request.account_name:
            return None
        return read_rules(_dump_spec(key))

    def _list_guardrails(self, request: Payer) -> list[Guardrail]:
        found = map(self._policies.find_guardrail, request.guardrail_names or ())
        return [g for g in found if g is not None and g.account == request.account_name]

    def _check_open(self, key: GatewayKey) -> None:
        spec, name = key.spec, key.metadata.name
        problem = check_key(key, self._now()) or check_creator(key, self._users)
        if problem is not None:
            raise _refuse(f"Key {name} opens nothing: {problem.message}.")
        creator = self._users.get(spec.created_by) if spec.created_by else None
        role = find_role(creator, spec.account_name) if creator else None
        refusal = refuse_key(Act.CREATE, spec.class_, act_as(spec.class_, role))
        if refusal == "wrong_credential_class":
            raise _refuse(f"Key {name} is a management key, which calls no model.")
        if refusal is not None:
            raise _refuse(f"Key {name} may create nothing: who made it is a {role}.")


def check_model(policy: Policy | None, service: str, model_id: str) -> None:
    """Raise Refusal where the key or a guardrail does not allow the model."""
    title = policy.find_refusal(service, model_id) if policy else None
    if policy is not None and title is not None:
        # an admin may make tasks of many keys, so the text says which
        title = f"key {policy.key_name}" if title == KEY_TITLE else title
        text = f"Model {model_id} is not allowed for {title}."
        raise Refusal(Reason.MODEL_NOT_ALLOWED, text)


def _dump_spec(obj: GatewayKey | GatewayGuardrail) -> dict[str, Any]:
    """Return the spec as it is in the object, which the rules are read from."""
    return obj.spec.model_dump(by_alias=True, exclude_none=True)


def _read_guardrail(obj: GatewayGuardrail) -> Guardrail:
    return read_guardrail({"metadata": {"name": obj.metadata.name}, "spec": _dump_spec(obj)})


def _refuse(text: str) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, text)


def _refuse_unseen(text: str, age: float) -> Exception:
    """Return the error for a run that names what the tables may not show yet."""
    return NotYet() if age < SIGHT_SECONDS else _refuse(text)
