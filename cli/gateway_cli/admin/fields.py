"""Parts of a row of the table, and options of a spec's fields, made of the API types."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from gateway_cli.cluster.client import Cluster
from gateway_cli.output import Document
from gateway_core.api.resource import Resource

Patch = dict[str, Any]
Given = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """An option of `list`.

    The API server selects by the field `path`, whose value `convert` makes of the option's; else
    `keep` chooses among the documents.
    """

    option: Any
    path: str = ""
    convert: Callable[[Any], str] = str
    keep: Callable[[Document, Any], bool] | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """A command that changes one thing: the patch of the spec, and the text when it is done."""

    patch: Patch
    done: str
    help: str
    question: str | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """The command that creates: its argument, and which settings it needs.

    `prepare` completes the spec from all that is given, and names the object.
    """

    help: str
    prepare: Callable[[Cluster, str, Patch, Given], Awaitable[str]]
    argument: Any
    required: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    """Settings that `set` does not have, as `Noun.settings`."""
    given: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Options for `prepare`, with their defaults."""
    labels: Callable[[str], dict[str, str]] | None = None


def make_limit(micros: int | None, window: str | None) -> Patch | None:
    """Return `spec.limit` of both options; a usage error where one is there without the other."""
    if (micros is None) != (window is None):
        raise typer.BadParameter(
            "--limit and --window go together, e.g. --limit 25 --window weekly"
        )
    return None if micros is None else {"micros": micros, "window": window}


def show_limit(budget: Document) -> str | None:
    """Return `25.00 weekly`, or None without a limit."""
    return None if budget["limit"] is None else f"{budget['limit']} {budget['window']}"


def get_path(setting: Any) -> str:
    """Return the field of a setting."""
    return str(setting if isinstance(setting, str) else setting[0])


def build_spec(given: Mapping[str, Any]) -> Patch:
    """Return the spec of the fields given by their paths, such as `owner.email`."""
    spec: Patch = {}
    for path, value in given.items():
        if value is not None:
            *above, last = path.split(".")
            part = spec
            for name in above:
                part = part.setdefault(name, {})
            part[last] = value
    return spec


def make_clear(words: Sequence[str]) -> Any:
    """Return the option that removes settings of these words."""
    clearable: Any = StrEnum("Clearable", {word.upper(): word for word in words})  # type: ignore[misc]
    return Annotated[
        list[clearable] | None,
        typer.Option("--clear", help="Remove a setting; may be repeated."),
    ]


def read_field(kind: type[Resource], path: str) -> tuple[Any, str]:
    """Return a field's type in the spec, and the first sentence of its description."""
    found: Any = kind.model_fields["spec"].annotation
    text = ""
    for name in path.split("."):
        part = next(part for part in found.model_fields.values() if part.alias == name)
        found, text = _strip(part.annotation), part.description or ""
    return found, text.split(". ")[0].rstrip(".") + "."


def _strip(annotation: Any) -> Any:
    """The type without its None and its constraints."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _strip(parts[0])
    if origin in (Union, UnionType):
        return _strip(next(part for part in parts if part is not NoneType))
    return list[_strip(parts[0])] if origin is list else annotation  # type: ignore[misc]
