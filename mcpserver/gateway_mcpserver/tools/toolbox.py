"""All tools in the order in which they are listed, and one call of one of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway_core.admission.rates import FreeRateLimiter
from gateway_core.api.errors import GatewayError, Internal
from gateway_mcpserver.metrics import McpMetrics
from gateway_mcpserver.protocol.messages import INVALID_PARAMS, RpcError
from gateway_mcpserver.tools.creation import PendingTask
from gateway_mcpserver.tools.tool import Output, Tool, ToolCall, ToolResult, render_failure


class Toolbox:
    """The tools by name. `rates` count calls of free tools by account."""

    def __init__(
        self, tools: Iterable[Tool[Any]], rates: FreeRateLimiter, metrics: McpMetrics
    ) -> None:
        self._rates = rates
        self._tools = {tool.name: tool for tool in tools}
        self._metrics = metrics
        self.described = [tool.describe() for tool in self._tools.values()]

    def find(self, name: object) -> Tool[Any]:
        """Return the tool of a name. RpcError: clients would show the model a tool's own error."""
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise RpcError(INVALID_PARAMS, "There is no tool of this name.")
        return tool

    async def call(
        self, tool: Tool[Any], arguments: Mapping[str, Any], call: ToolCall
    ) -> ToolResult | PendingTask:
        """Return the result of a call, also of a failed one, or what is to be waited for."""
        outcome = "ok"
        try:
            if not tool.paid:
                await self._rates.count(call.account, "tools")
            done: Output | PendingTask = await tool.call(arguments, call)
        except Exception as error:
            outcome = error.code if isinstance(error, GatewayError) else Internal.code
            return render_failure(error, tool.name, call)
        else:
            return done if isinstance(done, PendingTask) else ToolResult(done.to_json())
        finally:
            self._metrics.count_call(tool.name, outcome)
            if tool.paid:
                paid = call.context.outcome if outcome == "ok" else outcome
                self._metrics.count_admission("mcp", paid)
