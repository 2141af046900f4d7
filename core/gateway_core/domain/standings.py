"""What accounts, keys and guardrails show of money, from the record of usage.

Pure; the operator keeps their statuses true to it.
"""

from datetime import UTC, datetime
from typing import Any

from gateway_core.contract.account import Funds
from gateway_core.contract.limits import SpendLimit
from gateway_core.contract.money import to_decimal_text
from gateway_core.domain.lifecycle import format_time
from gateway_core.domain.spending import SpentSum
from gateway_core.domain.windows import find_reset, sum_window

Fields = dict[str, Any]
"""Fields of a status; None is one that is to be absent."""


def tell_balance(funds: Funds | None, charged: int) -> Fields:
    """The money of an account that was charged so much ever."""
    paid = funds.paid_micros + funds.bonus_micros if funds else 0
    return {
        "balanceMicros": paid - charged,
        "balance": to_decimal_text(paid - charged),
        "chargedMicros": charged,
        "charged": to_decimal_text(charged),
    }


def tell_spending(limit: SpendLimit | None, spent: SpentSum, now: datetime) -> Fields:
    """What a key or a pool has spent in its limit's window, else ever, and when that becomes less.

    A window in which nothing was spent becomes no less, so no time is told of it.
    """
    used, reset = spent.total, None
    if limit is not None:
        buckets = spent.freeze()
        used = sum_window(buckets, limit.window, now)
        reset = find_reset(buckets, limit.window, now) if used else None
    return {
        "usedMicros": used,
        "used": to_decimal_text(used),
        "resetTime": format_time(reset.astimezone(UTC)) if reset else None,
    }
