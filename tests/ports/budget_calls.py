"""Calls of keys with budgets, and what is charged and held of them."""

from datetime import UTC, datetime

from hypothesis import HealthCheck, settings

from gateway_core.billing.counters import AdmissionCall, Budget, Hold, Ledger
from gateway_core.billing.redis_counters import Counters
from tests.ports.counters_stores import CountersStore, name_account, rebuild

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
KEY, OTHER_KEY, POOL = "key/key-a", "key/key-b", "guardrail/grd-a"
PER_EXAMPLE = settings(
    max_examples=40,
    deadline=None,
    # The store is shared by the examples; each has an account of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def ask(
    account: str,
    task: str,
    micros: int,
    *budgets: Budget,
    funds: int | None = None,
    subjects: tuple[str, ...] | None = None,
) -> AdmissionCall:
    """A call of a key that has these budgets, and counts under them unless told otherwise."""
    named = tuple(budget.subject for budget in budgets) if subjects is None else subjects
    return AdmissionCall(account, 100_000, Hold(task, micros, named), funds, budgets=budgets)


async def tell(counters: Counters, account: str, *subjects: str) -> list[tuple[int, int]]:
    """Charged ever and held, of each."""
    states = await counters.read_budgets(account, [Budget(subject) for subject in subjects])
    return [(state.used, state.held) for state in states]


async def start(store: CountersStore, ledger: Ledger | None = None) -> str:
    """An account whose money is current, at noon."""
    account = name_account()
    store.set_clock(NOON)
    await rebuild(store.counters, account, ledger)
    return account
