"""All that restricts the calls of one key, kept by key from the table of guardrails.

The API asks at every paid call, the operator for tasks made with kubectl. What a key may do is
worked out once, and again when the key or one of its guardrails has changed, so that a call costs a
look-up however many keys and guardrails there are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway_core.contract.errors import Forbidden
from gateway_core.contract.limits import MOST_GUARDRAILS, subject_of_guardrail, subject_of_key
from gateway_core.domain.guardrails import Guardrail, Rules, select_guardrails
from gateway_core.ports.caches import Table
from gateway_core.ports.counters import Budget

T = TypeVar("T")

KEY_TITLE = "this key"


@dataclass(frozen=True, slots=True)
class Policy:
    """What restricts a key's calls: all of it must allow a call.

    `guardrail_names` are those that the call is recorded with, `subjects` what its money is counted
    under then (`contract.limits.list_subjects`), and `budgets` what the counters have to be asked
    for; `limited` is whether any of these is about money. A key with more guardrails than it may
    have is `closed`: which of them count cannot be told, so none is passed over.
    """

    key_name: str
    guardrail_names: tuple[str, ...]
    subjects: tuple[str, ...]
    budgets: tuple[Budget, ...]
    limited: bool
    closed: bool
    _rules: tuple[tuple[str, str, Rules], ...]

    def find_refusal(self, service: str, model_id: str) -> str | None:
        """Who does not allow the model: `this key`, or a guardrail by its name for people."""
        return next(
            (title for _, title, rules in self._rules if not rules.admit(service, model_id)), None
        )

    def check(self, service: str, model_id: str) -> None:
        """Raises Forbidden where a call of the model at `service` is not allowed (§7.4)."""
        if self.closed:
            raise _refuse(
                f"This key has more than {MOST_GUARDRAILS} guardrails, so nothing can be called"
                " with it: take it out of some."
            )
        title = self.find_refusal(service, model_id)
        if title is not None:
            raise _refuse(f"Model {model_id} is not allowed for {title}.")

    def name_subject(self, subject: str) -> str:
        """What people call a subject of this policy: `this key`, or a guardrail's name."""
        return next((title for known, title, _ in self._rules if known == subject), "a guardrail")


def build_policy(key_name: str, rules: Rules, guardrails: Iterable[Guardrail]) -> Policy:
    """The policy of a key with these rules, and the guardrails that hold for it, by name."""
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
        _rules=tuple(parts),
    )


def make_budget(subject: str, rules: Rules) -> Budget | None:
    """What the counters have to watch for a key or guardrail; None where that is nothing."""
    if rules.limit is None and rules.requests_per_minute is None:
        return None
    return Budget(subject, rules.limit, rules.window, rules.requests_per_minute)


def name_guardrail(guardrail: Guardrail) -> str:
    """What people call a guardrail: the name that its owner gave it."""
    return f'guardrail "{guardrail.display_name}"'


class Policies(Generic[T]):
    """Policies by key, following the tables; `read` makes a guardrail of a table's entry."""

    def __init__(
        self, keys: Table[Any], guardrails: Table[T], read: Callable[[T], Guardrail]
    ) -> None:
        self._guardrails = guardrails
        self._read = read
        self._seen: dict[str, Guardrail] = {}
        self._of_key: dict[str, dict[str, Guardrail]] = {}
        self._known: dict[str, tuple[Rules, str, Policy]] = {}
        for name in dict(guardrails.items()):
            self._follow(name)
        guardrails.subscribe(self._follow)
        # a key that is gone leaves nothing behind
        keys.subscribe(self._forget)

    def find(self, key_name: str, account: str, rules: Rules) -> Policy:
        """The policy of a key of `account` with these rules, as the table of guardrails has it."""
        known = self._known.get(key_name)
        if known is not None and known[0] == rules and known[1] == account:
            return known[2]
        listed = self._of_key.get(key_name, {}).values()
        chosen = select_guardrails(listed, account=account, key_name=key_name)
        policy = build_policy(key_name, rules, chosen)
        self._known[key_name] = rules, account, policy
        return policy

    def find_guardrail(self, name: str) -> Guardrail | None:
        """The guardrail of that name, if there is one."""
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
