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
class Setting:
    """An option for a field of the spec: its path in objects, its type, and its help."""

    path: str
    kind: Any
    text: str
    is_required: bool
    """Return whether the spec must have the field."""

    def make_option(self, is_required: bool) -> Any:
        """Return the option's type."""
        repeated = " May be repeated." if get_origin(self.kind) is list else ""
        kind = self.kind if is_required else self.kind | None
        return Annotated[kind, typer.Option(help=self.text + repeated)]


@dataclass(frozen=True, slots=True)
class Filter:
    """An option of `list`, for a text if it is None.

    The API server selects by the field `path`, whose value `convert` makes of the option's: None
    for any. `keep` chooses among the documents.
    """

    path: str = ""
    option: Any = None
    convert: Callable[[Any], str | None] = str
    keep: Callable[[Document, Any], bool] | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """A command that changes one thing: the patch of the spec, and its verb when it is done."""

    patch: Patch
    done: str
    help: str
    question: str | None = None


NewName = Annotated[
    str, typer.Argument(metavar="NAME", help="Its name: lowercase letters, digits, dashes.")
]


async def name_as_given(_: Cluster, name: str, _spec: Patch, _given: Given) -> str:
    """Return the name, of an object whose options say all."""
    return name


@dataclass(frozen=True, slots=True)
class Create:
    """The command that creates: its argument, and which settings it needs.

    `prepare` completes the spec from all that is given, and names the object.
    """

    help: str
    prepare: Callable[[Cluster, str, Patch, Given], Awaitable[str]] = name_as_given
    required: Sequence[str] = ()
    argument: Any = NewName
    settings: str = ""
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


def build_spec(settings: Mapping[str, Setting], given: Given) -> Patch:
    """Return the spec of the values given for settings; None gives none."""
    spec: Patch = {}
    for name, setting in settings.items():
        if given.get(name) is not None:
            *above, last = setting.path.split(".")
            part = spec
            for step in above:
                part = part.setdefault(step, {})
            part[last] = given[name]
    return spec


def make_clear(words: Sequence[str]) -> Any:
    """Return the option that removes settings of these words."""
    clearable: Any = StrEnum("Clearable", {word.upper(): word for word in words})  # type: ignore[misc]
    return Annotated[
        list[clearable] | None,
        typer.Option("--clear", help="Remove a setting; may be repeated."),
    ]


def read_settings(kind: type[Resource], words: str) -> dict[str, Setting]:
    """Return the settings of words such as `suspended` or `owner_email=owner.email`.

    A word is a field of the spec's API type, maybe with the option's name before it.
    """
    settings = {}
    for word in words.split():
        name, _, path = word.partition("=")
        *above, last = (path or name).split(".")
        found: Any = kind.model_fields["spec"].annotation
        aliases = []
        for step in above:
            aliases.append(found.model_fields[step].alias)
            found = _strip(found.model_fields[step].annotation)
        part = found.model_fields[last]
        aliases.append(part.alias)
        text = (part.description or "").split(". ")[0].rstrip(".") + "."
        kind_of_value = _strip(part.annotation)
        settings[name] = Setting(".".join(aliases), kind_of_value, text, part.is_required())
    return settings


def _strip(annotation: Any) -> Any:
    """Return the type without its None and its constraints."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _strip(parts[0])
    if origin in (Union, UnionType):
        return _strip(next(part for part in parts if part is not NoneType))
    return list[_strip(parts[0])] if origin is list else annotation  # type: ignore[misc]
