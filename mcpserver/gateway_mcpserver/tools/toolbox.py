"""All tools in the order in which they are listed, and one call of one of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from gateway_core.api.errors import GatewayError, Internal
from gateway_core.validation import validate
from gateway_mcpserver.metrics import McpMetrics
from gateway_mcpserver.protocol.messages import INVALID_PARAMS, RpcError
from gateway_mcpserver.tools.tasks import PendingTask
from gateway_mcpserver.tools.tool import Output, Tool, ToolCall, ToolResult, describe_error

_log = structlog.get_logger(__name__)


class Toolbox:
    """The tools by name."""

    def __init__(self, tools: Iterable[Tool[Any]], metrics: McpMetrics) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._metrics = metrics
        self.described = [tool.describe() for tool in self._tools.values()]

    def find(self, name: object) -> Tool[Any]:
        """The tool of a name. RpcError: clients would show the model a tool's own error."""
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise RpcError(INVALID_PARAMS, "There is no tool of this name.")
        return tool

    async def call(
        self, tool: Tool[Any], arguments: Mapping[str, Any], call: ToolCall
    ) -> ToolResult | PendingTask:
        """The result of a call, also of a failed one, or what is to be waited for."""
        outcome = "ok"
        try:
            given = validate(tool.arguments, arguments)
            done: Output | PendingTask = await tool.run(given, call)
        except GatewayError as error:
            outcome = error.code
            return ToolResult(describe_error(error).encode(), is_error=True)
        except Exception:
            outcome = Internal.code
            _log.exception("a tool failed", tool=tool.name)
            text = f"The gateway failed on this call; its id is {call.context.request_id}."
            return ToolResult(text.encode(), is_error=True)
        else:
            return done if isinstance(done, PendingTask) else ToolResult(done.to_json())
        finally:
            self._metrics.count_call(tool.name, outcome)
            if not tool.annotations["readOnlyHint"]:
                paid = call.context.outcome if outcome == "ok" else outcome
                self._metrics.count_admission("mcp", paid)
