"""Tools of Responses requests as functions of chat, whose calls are turned back (contract §7.3).

Chat has functions alone. A tool of a namespace becomes a function with both names, a custom tool
one with a single string, and a tool of the format's own that the client runs one with the fields of
its call.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson

from gateway_core.llm.formats.calls import as_object, as_objects
from gateway_core.llm.formats.chat_message import read_arguments
from gateway_core.llm.formats.requests import invalid
from gateway_core.llm.formats.translation import list_items, refuse
from gateway_core.llm.unpriced import find_provider_tool

Item = dict[str, Any]

_MOST_NAME = 64
"""Characters of a function's name in chat."""
_IDS = {
    "function": "fc",
    "custom": "ctc",
    "tool_search": "tsc",
    "local_shell": "lsh",
    "shell": "sh",
}
_INPUT = "input"
"""The one parameter of a custom tool's function."""


@dataclass(frozen=True, slots=True)
class OwnKind:
    """A tool of the format's own that the client runs: the field of its calls, and a function.

    `defaults` are required in `holder`, the field. A tool without `parameters` has its own.
    """

    holder: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _describe(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [required]}


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}
_OWN_KINDS = {
    "apply_patch": OwnKind(
        "operation",
        "Create, update or delete a file.",
        _describe(
            "type",
            type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            path=_TEXT,
            diff={"type": "string", "description": "In the V4A diff format; not to delete."},
        ),
        {"type": "update_file", "path": "", "diff": ""},
    ),
    "local_shell": OwnKind(
        "action",
        "Run a command.",
        _describe("command", command=_TEXTS, working_directory=_TEXT, timeout_ms=_NUMBER),
        {"type": "exec", "command": [], "env": {}},
    ),
    "shell": OwnKind(
        "action",
        "Run commands in a shell.",
        _describe("commands", commands=_TEXTS, timeout_ms=_NUMBER, max_output_length=_NUMBER),
        {"commands": []},
    ),
    "tool_search": OwnKind("arguments"),
}
_KINDS = frozenset({"function", "custom", *_OWN_KINDS})
_COMPUTER = "computer"
"""A tool that only models trained for it can use; others read of its use in earlier turns."""
_ACTIONS = ("action", "actions")
CALLS = frozenset(
    {
        "function_call",
        "custom_tool_call",
        *(f"{kind}_call" for kind in (*_OWN_KINDS, _COMPUTER)),
    }
)
"""Types of items that are calls of tools which the client runs."""
_PLAIN_RESULTS = frozenset({"function_call_output", "custom_tool_call_output"})
RESULTS = frozenset(
    {"tool_search_output", *(f"{kind}_output" for kind in CALLS if kind != "tool_search_call")}
)
"""Types of items that are their results."""


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs. `kind` is its type, one of `_KINDS`."""

    kind: str
    name: str
    namespace: str | None = None

    def begin_call(self, call_id: Any) -> Item:
        """Return the item of a call of this tool, whose arguments are to come."""
        item: Item = {
            "id": f"{_IDS.get(self.kind, 'call')}_{secrets.token_hex(24)}",
            "type": "custom_tool_call" if self.kind == "custom" else f"{self.kind}_call",
            "status": "in_progress",
            "call_id": str(call_id or f"call_{secrets.token_hex(12)}"),
        }
        own = _OWN_KINDS.get(self.kind)
        if own is not None:
            item[own.holder] = dict(own.defaults)
            return item | ({"execution": "client"} if self.kind == "tool_search" else {})
        item |= {"name": self.name, _INPUT if self.kind == "custom" else "arguments": ""}
        return item if self.namespace is None else item | {"namespace": self.namespace}


def end_call(item: Item, arguments: str, *, is_cut: bool = False) -> None:
    """Put the whole arguments of a function of chat into the item that `begin_call` made.

    It is `incomplete` if they cannot be read, so that no client makes the call. `is_cut`: the
    answer was cut off.
    """
    read = read_arguments(arguments, is_cut=is_cut)
    item["status"] = "incomplete" if read is None else "completed"
    own = _OWN_KINDS.get(item["type"].removesuffix("_call"))
    if own is not None:
        item[own.holder] |= read or {}
    elif item["type"] == "custom_tool_call":
        text = (read or {}).get(_INPUT)
        item[_INPUT] = text if isinstance(text, str) else arguments
        if not (is_cut or arguments.lstrip().startswith("{")):
            # a model may write the text itself, as it would for the provider that knows such tools
            item["status"] = "completed"
    else:
        item["arguments"] = arguments
        if not item["name"]:
            item["status"] = "incomplete"


class ClientTools:
    """The tools of a Responses request by the names of their functions in chat.

    `functions` are the functions for chat. `dropped` has the types of tools that the provider
    runs, which are left out.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.functions: list[dict[str, Any]] = []
        self.dropped: list[str] = []
        self._tools: dict[str, ClientTool] = {}
        self._names: dict[tuple[str | None, str], str] = {}
        for path, tool in _list_tools(body):
            self._declare(tool, path, None)
        if self.dropped and not self.functions:
            raise refuse("tools", "must have a function for this model's provider")

    def drop_functions(self) -> None:
        """Keep the names alone, once the request is sent."""
        self.functions = []

    def allow(self, tools: list[dict[str, Any]]) -> None:
        """Leave out all functions but those of `tools`, which names single ones or namespaces."""
        names = {self.name_function(tool) for tool in tools if tool.get("type") != "namespace"}
        spaces = {tool.get("name") for tool in tools if tool.get("type") == "namespace"}
        self.functions = [
            function
            for function in self.functions
            if (name := function["function"].get("name")) in names
            or (name in self._tools and self._tools[name].namespace in spaces)
        ]

    def find(self, name: Any) -> ClientTool:
        """Return the tool that the model calls by the function `name`, also an undeclared one."""
        known = str(name or "")
        return self._tools.get(known) or ClientTool("function", known)

    def read_call(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call of an earlier turn, whose tool may be declared no more, as chat's."""
        kind = str(item.get("type")).removesuffix("_call")
        own = _OWN_KINDS.get(kind)
        if kind == _COMPUTER:
            arguments: Any = _dump({key: item[key] for key in _ACTIONS if item.get(key)})
        elif own is not None:
            arguments = _dump(as_object(item.get(own.holder)))
        elif item.get("type") == "custom_tool_call":
            arguments = _dump({_INPUT: item.get(_INPUT) or ""})
        else:
            arguments = item.get("arguments") or "{}"
            if isinstance(arguments, dict):
                arguments = _dump(arguments)
        function = {"name": self.name_function(item), "arguments": arguments}
        call_id = item.get("call_id") or item.get("id")
        return {"id": call_id, "type": "function", "function": function}

    def read_result(self, item: Mapping[str, Any]) -> Any:
        """Return the result of a call: a text, or parts."""
        if item.get("type") == "tool_search_output":
            return self._show_found(item)
        output = item.get("output")
        if item.get("type") == "computer_call_output":
            return [output]
        if isinstance(output, str) or item.get("type") in _PLAIN_RESULTS:
            return output
        return _dump({name: item[name] for name in ("status", "output") if name in item})

    def name_function(self, holder: Mapping[str, Any]) -> Any:
        """Return the function's name in chat of a tool, of a call or of a choice."""
        kind = str(holder.get("type")).removesuffix("_call")
        if kind in _OWN_KINDS or kind == _COMPUTER:
            return kind
        return self._name(holder.get("namespace"), holder.get("name"))

    def _show_found(self, item: Mapping[str, Any]) -> str:
        """Return the result of a search for tools as text; the tools themselves are declared."""
        names = []
        for tool in as_objects(item.get("tools")):
            inner = as_objects(tool.get("tools"))
            names += [self._name(tool.get("name"), each.get("name")) for each in inner]
            names += [] if inner else [tool.get("name")]
        return _dump({"tools": names})

    def _name(self, namespace: Any, name: Any) -> Any:
        if not isinstance(name, str) or not isinstance(namespace, str | None):
            return name
        return self._names.get((namespace, name)) or _flatten(namespace, name)

    def _declare(self, tool: Any, path: str, namespace: str | None) -> None:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise refuse(path)
        if find_provider_tool(tool) is not None or (
            kind == "tool_search" and tool.get("execution") != "client"
        ):
            self.dropped.append(kind)
            return
        own = _OWN_KINDS.get(kind)
        name = kind if own else tool.get("name")
        if kind == "namespace" and namespace is None:
            for place, inner in enumerate(list_items(tool.get("tools"), f"{path}.tools")):
                self._declare(inner, f"{path}.tools[{place}]", str(name or ""))
            return
        if kind not in _KINDS:
            raise refuse(path, "must be a function for this model's provider")
        if not isinstance(name, str):
            hint = ": in Responses it is beside type, not in function" if "function" in tool else ""
            raise invalid(f"{path}.name", f"must be a string{hint}")
        function = {
            field: tool[field]
            for field in ("description", "parameters", "strict")
            if tool.get(field) is not None
        }
        key = namespace, name
        if key in self._names:
            # declared again by a later search for tools
            return
        flat = _flatten(*key)
        if flat in self._tools:
            flat = _flatten(*key, is_taken=True)
        self._tools[flat] = ClientTool(kind, name, namespace)
        self._names[key] = flat
        function = {"name": flat, **function}
        if kind == "custom":
            function |= _describe_custom(tool)
        elif own is not None and own.parameters is not None:
            function |= {"description": own.description, "parameters": dict(own.parameters)}
        self.functions.append({"type": "function", "function": function})


def _flatten(namespace: str | None, name: str, *, is_taken: bool = False) -> str:
    """Return the name of a tool as a function of chat; it follows from both names alone."""
    if not namespace and not is_taken:
        return name
    flat = f"{namespace.rstrip('_')}__{name}" if namespace else name
    if len(flat) <= _MOST_NAME and not is_taken:
        return flat
    digest = sha256(f"{namespace}\0{name}".encode()).hexdigest()[:8]
    return f"{flat[: _MOST_NAME - len(digest) - 1]}_{digest}"


def _list_tools(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the tools of a body and of items that add some, each with its path."""
    for place, tool in enumerate(list_items(body.get("tools"), "tools")):
        yield f"tools[{place}]", tool
    for index, item in enumerate(as_objects(body.get("input"))):
        if item.get("type") in ("tool_search_output", "additional_tools"):
            path = f"input[{index}].tools"
            for place, tool in enumerate(list_items(item.get("tools"), path)):
                yield f"{path}[{place}]", tool


def _describe_custom(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function's description, with the grammar of its text, and its parameters."""
    texts = [str(tool.get("description") or "")]
    form = as_object(tool.get("format"))
    if form.get("type") == "grammar":
        texts.append(f"The input must follow this {form.get('syntax')} grammar:")
        texts.append(str(form.get("definition") or ""))
    parameters = {
        "type": "object",
        "properties": {
            _INPUT: {"type": "string", "description": "The whole input, as plain text."}
        },
        "required": [_INPUT],
        "additionalProperties": False,
    }
    return {"description": "\n".join(filter(None, texts)), "parameters": parameters}


def _dump(value: dict[str, Any]) -> str:
    return orjson.dumps(value).decode()
