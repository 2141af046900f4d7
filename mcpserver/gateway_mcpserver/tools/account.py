"""`check_balance`: what the account has left."""

from gateway_core.accounts.records import Balance, work_out_balance
from gateway_core.admission.rates import RateLimiter
from gateway_mcpserver.tools.models import NoArguments
from gateway_mcpserver.tools.tool import Output, ReadingTool, ToolCall


class BalanceOutput(Output, Balance):
    """Output of `check_balance`."""


class CheckBalance(ReadingTool[NoArguments]):
    """The account's money (contract §2.4)."""

    name = "check_balance"
    title = "Check the balance"
    description = "Shows the money of this account in cents: what is left, and what was spent."
    arguments = NoArguments
    output = BalanceOutput

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def run(self, given: NoArguments, call: ToolCall) -> BalanceOutput:
        """Return the balance. Unavailable while the counters are."""
        spending = await self._limiter.read_spending(call.account)
        balance = work_out_balance(call.caller.principal.account, spending)
        return BalanceOutput(**balance.model_dump())
