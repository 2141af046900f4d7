"""Spending of keys and guardrails: from the counters, else as the operator last saw it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway_core.admission.rates import RateLimiter
from gateway_core.billing.counters import Budget, BudgetState
from gateway_core.billing.windows import TRAILING, Buckets, find_reset


@dataclass(frozen=True, slots=True)
class BudgetView:
    """Micro-dollars used, and left below the limit with holds taken off; None: not known, no limit.

    `reset` is when less is used without anything done; None for never, or where nothing is used.
    """

    used: int | None
    left: int | None
    reset: datetime | None


class BudgetReader:
    """Reads budgets of one account at a time."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def read(
        self, account: str, subjects: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, BudgetView]:
        """By subject (`api.limits`), of objects of keys and guardrails.

        While the counters are away: what the operator has last seen, which is in their statuses.
        """
        budgets = [make_budget(subject, obj["spec"]) for subject, obj in subjects.items()]
        if not budgets:
            return {}
        states = await self._limiter.read_budgets(account, budgets)
        if states is None:
            return {subject: view_status(obj) for subject, obj in subjects.items()}
        return {state.budget.subject: view_state(state) for state in states}


def make_budget(subject: str, spec: Mapping[str, Any]) -> Budget:
    """The budget of a spec; without a limit what was ever spent is asked for."""
    limit = spec.get("limit") or {}
    return Budget(subject, limit.get("micros"), limit.get("window", "lifetime"))


def view_unused(spec: Mapping[str, Any], now: datetime) -> BudgetView:
    """The budget of a spec of which nothing was ever used."""
    budget = make_budget("", spec)
    reset = find_reset(Buckets(), budget.window or "lifetime", now)
    return BudgetView(0, budget.limit, None if budget.window in TRAILING else reset)


def view_state(state: BudgetState) -> BudgetView:
    """A budget as the counters have it."""
    limit, window = state.budget.limit, state.budget.window
    idle = window in TRAILING and not state.used
    reset = None if idle or state.reset is None else datetime.fromtimestamp(state.reset, UTC)
    left = None if limit is None else max(0, limit - state.used - state.held)
    return BudgetView(state.used, left, reset)


def view_status(obj: Mapping[str, Any]) -> BudgetView:
    """A budget as its object's status has it."""
    status, limit = obj.get("status") or {}, obj["spec"].get("limit")
    used, reset = status.get("usedMicros"), status.get("resetTime")
    left = None if limit is None or used is None else max(0, limit["micros"] - used)
    moment = datetime.fromisoformat(reset).astimezone(UTC) if reset else None
    return BudgetView(used, left, moment)
