"""docs/gatewayctl.md: the reference of the command line, made from its own commands."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from gateway_cli.nouns import NOUNS, load_noun

HIDDEN = ("help",)


def build_command_reference(introduction: str) -> str:
    """The page: the introduction, then every command with its arguments and options."""
    parts = [introduction.rstrip()]
    for name in NOUNS:
        command = load_noun(name)
        parts.append(f"## {name}\n\n{NOUNS[name].help}")
        parts += [_describe(words, leaf) for words, leaf in _list_leaves([name], command)]
    return "\n\n".join(parts) + "\n"


def _list_leaves(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    """Every command under this one that does something, with the words that call it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
        return
    for name, child in children.items():
        yield from _list_leaves([*words, name], child)


def _describe(words: list[str], command: Any) -> str:
    shown = [param for param in command.params if param.name not in HIDDEN]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    options = [param for param in shown if param.param_type_name == "option"]
    required = [param for param in options if param.required]
    usage = ["gatewayctl", *words, *map(_show_argument, arguments)]
    usage += [f"{max(param.opts, key=len)} {_show_type(param)}" for param in required]
    if len(options) > len(required):
        usage.append("[OPTIONS]")
    head = f"### {' '.join(words)}\n\n    {' '.join(usage)}"
    panel = getattr(command, "rich_help_panel", None)
    text = (command.help or "").strip()
    about = f"{text}\n\n{panel}." if isinstance(panel, str) else text
    rows = [f"| {_show_option(param)} | {_explain(param)} |" for param in options]
    table = "\n".join(["| Option | |", "|---|---|", *rows]) if rows else ""
    return "\n\n".join(part for part in (head, about, table) if part)


def _show_argument(param: Any) -> str:
    name = _name_argument(param) + ("…" if param.nargs != 1 else "")
    return name if param.required else f"[{name}]"


def _name_argument(param: Any) -> str:
    return str(param.metavar or param.name).upper()


def _show_option(param: Any) -> str:
    names = "/".join([*param.opts, *param.secondary_opts])
    return f"`{names}`" if param.is_flag else f"`{names} {_show_type(param)}`".replace("|", "\\|")


def _show_type(param: Any) -> str:
    annotation = param.type_descriptor.annotation
    if param.metavar:
        return str(param.metavar)
    if get_origin(annotation) is list:
        (annotation,) = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return "|".join(annotation)
    return {str: "TEXT", Path: "PATH", int: "NUMBER"}[annotation]


def _explain(param: Any) -> str:
    text = (param.help or "").replace("|", "\\|")
    extra = []
    if param.required:
        extra.append("required")
    default = param.default
    if default not in (None, False, 0, "", ()) and not callable(default):
        extra.append(f"default {getattr(default, 'value', default)}")
    if isinstance(param.envvar, str):
        extra.append(f"or `${param.envvar}`")
    return f"{text} ({', '.join(extra)})" if extra else text
