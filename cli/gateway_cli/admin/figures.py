"""What accounts were charged, and what keys and guardrails have used of their limits.

Counted from GatewayUsage, as a rebuild counts it: what ended is in it within seconds. Calls under
way hold more until they end, which only the API knows.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway_cli.cluster.calls import Object
from gateway_cli.cluster.errors import Forbidden, NotServed
from gateway_core.contract.usage import GatewayUsage
from gateway_core.domain.usage import sum_usage
from gateway_core.domain.windows import find_reset, sum_window

if TYPE_CHECKING:
    from gateway_cli.admin.objects import GatewayObjects


class Figures:
    """The usage of some accounts, read once."""

    def __init__(self, usages: list[Object], now: datetime) -> None:
        self._now = now
        self._by_account: dict[str, list[Object]] = defaultdict(list)
        for obj in usages:
            self._by_account[obj["spec"]["accountName"]].append(obj)

    def complete_account(self, obj: Object) -> Object:
        """The account with its money as of now in its status."""
        funds = obj["spec"].get("funds") or {}
        paid = funds.get("paidMicros", 0) + funds.get("bonusMicros", 0)
        charged = sum_usage(self._by_account.get(obj["metadata"]["name"], [])).charged
        return _with_status(obj, {"balanceMicros": paid - charged, "chargedMicros": charged})

    def complete_budget(self, obj: Object, subject: str) -> Object:
        """The key or guardrail with what it has used, and when that becomes less, in its status.

        In its limit's window; without a limit what it has ever spent.
        """
        usages = self._by_account.get(obj["spec"]["accountName"], [])
        window = (obj["spec"].get("limit") or {}).get("window", "lifetime")
        spent = sum_usage(usages, [subject]).spent[subject].freeze()
        used = sum_window(spent, window, self._now)
        trailing = window in ("1h", "1d", "7d")
        reset = None if trailing and not used else find_reset(spent, window, self._now)
        figures = {
            "usedMicros": used,
            "resetTime": reset.strftime("%Y-%m-%dT%H:%M:%SZ") if reset else None,
            "lastUsedTime": _find_last(usages, subject),
        }
        return _with_status(obj, figures)


async def read_figures(objects: "GatewayObjects", account: str | None = None) -> Figures | None:
    """The figures of one account, or of all; None where usage may not be read.

    Without them an object's own status is shown.
    """
    try:
        usages = await objects.list_all(GatewayUsage, **{"spec.accountName": account})
    except (Forbidden, NotServed):
        return None
    return Figures(usages, datetime.now(UTC))


def _find_last(usages: list[Object], subject: str) -> str | None:
    """When the subject was last charged; not known of one that shares its entry with others."""
    entries = (entry for obj in usages for entry in (obj.get("status") or {}).get("spent") or ())
    times = [entry["lastTime"] for entry in entries if entry["subject"] == subject]
    return max(times, default=None)


def _with_status(obj: Object, figures: Mapping[str, Any]) -> Object:
    return {**obj, "status": {**(obj.get("status") or {}), **figures}}
