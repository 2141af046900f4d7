"""What a tool is: arguments and output as pydantic models, from which its schemas follow."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

import orjson
import structlog
from pydantic import BaseModel

from gateway_core.api.errors import (
    GatewayError,
    InvalidRequest,
    OutcomeUnknown,
    RateLimited,
    TooManyCalls,
    Unavailable,
    WinnerUndecided,
)
from gateway_core.api.oauth import Scope
from gateway_core.validation import Creation, validate
from gateway_mcpserver.authentication import Caller
from gateway_web.context import RequestContext

Schema = dict[str, Any]

MOST_NAME_CHARACTERS = 512
"""Of services, actions, models, ids and categories in arguments, which results repeat."""

_log = structlog.get_logger(__name__)


class Arguments(Creation):
    """Arguments of a tool: no unknown one, null as absent."""


class Output(BaseModel):
    """Output of a tool. Fields in `omitted` are left out where they are None."""

    omitted: ClassVar[frozenset[str]] = frozenset()

    def to_json(self) -> bytes:
        """Return the structured content."""
        values = self.model_dump(by_alias=True)
        kept = {k: v for k, v in values.items() if v is not None or k not in self.omitted}
        return orjson.dumps(kept)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: who makes it, and the state of its request."""

    caller: Caller
    context: RequestContext

    @property
    def account(self) -> str:
        """Name of the caller's account."""
        return self.caller.account


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call: structured content, or the text of an error."""

    content: bytes
    is_error: bool = False

    def render(self) -> dict[str, Any]:
        """`CallToolResult`: an error has no structured content, since clients validate it."""
        text = [{"type": "text", "text": self.content.decode()}]
        if self.is_error:
            return {"content": text, "isError": True}
        structured = orjson.Fragment(self.content)
        return {"content": text, "structuredContent": structured, "isError": False}


A = TypeVar("A", bound=Arguments)


class Tool(ABC, Generic[A]):
    """A tool. `call` raises GatewayError, whose text the caller's model reads.

    A `paid` tool counts its calls by admission; calls of all others count in one free rate.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    scope: ClassVar[Scope] = "mcp:read"
    paid: ClassVar[bool] = False
    output: ClassVar[type[Output]]
    annotations: ClassVar[Mapping[str, bool]] = {
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    arguments: type[A]

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any], call: ToolCall) -> Any:
        """Return the output for arguments as they came, or a task to wait for (`PendingTask`).

        InvalidRequest names each bad argument.
        """

    def describe(self) -> dict[str, Any]:
        """Return the tool as `tools/list` shows it."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": describe_arguments(self.arguments),
            "outputSchema": describe_output(self.output),
            "annotations": dict(self.annotations),
        }


class ReadingTool(Tool[A]):
    """A tool that checks its arguments before anything else."""

    async def call(self, arguments: Mapping[str, Any], call: ToolCall) -> Any:
        """Return the result of `run` for arguments as they came."""
        return await self.run(validate(self.arguments, arguments), call)

    @abstractmethod
    async def run(self, given: A, call: ToolCall) -> Any:
        """Return the output for valid arguments."""


@cache
def describe_arguments(model: type[Arguments]) -> Schema:
    """JSON Schema of arguments; an optional one is described without null, which it takes too."""
    return _simplify(model.model_json_schema())


@cache
def describe_output(model: type[Output]) -> Schema:
    """JSON Schema of an output; fields that are left out where they are None are never null."""
    schema = model.model_json_schema(mode="serialization")
    required = [name for name in schema["properties"] if name not in model.omitted]
    described = _simplify(schema, keeps_null=lambda name: name not in model.omitted)
    return described | {"required": required}


def _simplify(schema: Schema, keeps_null: Any = lambda _: False) -> Schema:
    """Return the schema without titles and class docstrings.

    Properties lose null unless they keep it.
    """
    kept = {key: value for key, value in schema.items() if key not in ("title", "description")}
    properties = {}
    for name, value in kept.get("properties", {}).items():
        described = {key: part for key, part in value.items() if key != "title"}
        forms = [form for form in described.get("anyOf", ()) if form.get("type") != "null"]
        if len(forms) == 1 and not keeps_null(name):
            del described["anyOf"]
            described |= forms[0]
        if described.get("default", ...) is None:
            del described["default"]
        properties[name] = described
    if "properties" in kept:
        kept["properties"] = properties
    if "$defs" in kept:
        kept["$defs"] = {
            name: _simplify(part, keeps_null=lambda _: True) for name, part in kept["$defs"].items()
        }
    return kept


def render_failure(error: Exception, tool: str, call: ToolCall) -> ToolResult:
    """Return the result of a failed call.

    A defect is logged, and named by the id of its request alone.
    """
    if not isinstance(error, GatewayError):
        _log.error("a tool failed", tool=tool, exc_info=error)
        text = f"The gateway failed on this call; its id is {call.context.request_id}."
    else:
        text = describe_error(error)
        if isinstance(error, OutcomeUnknown | WinnerUndecided):
            text += f" Call {tool} again with the same idempotency_key: it costs nothing more."
    if call.context.task is not None:
        text += f" The task_id is {call.context.task}."
    return ToolResult(text.encode(), is_error=True)


def describe_error(error: GatewayError) -> str:
    """Return the text of an error: what is wrong with each argument, and when to try again."""
    parts = [error.message]
    if isinstance(error, InvalidRequest) and error.errors:
        parts += [f"{name}: {'; '.join(texts)}." for name, texts in error.errors.items()]
    if isinstance(error, RateLimited | TooManyCalls | Unavailable):
        parts.append(f"Try again in {error.retry_after} s.")
    return " ".join(parts)
