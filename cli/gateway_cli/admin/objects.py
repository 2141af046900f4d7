"""The commands that every kind has: list, describe, create, set, delete, and switches.

They are made from a row of `gateway_cli.admin.table`. Options come from the API types: their
types, and the first sentence of a field's description as help.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_origin

import typer

from gateway_cli import options as opt
from gateway_cli.admin.fields import (
    Create,
    Filter,
    Given,
    Patch,
    Switch,
    build_spec,
    get_path,
    make_clear,
    make_limit,
    read_field,
    show_limit,
)
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import AlreadyThere, explain_stay, refuse_removed
from gateway_cli.output import (
    Column,
    Document,
    Format,
    Output,
    RowPrinter,
    list_lines,
    print_done,
    print_list,
    print_note,
    print_one,
)
from gateway_cli.progress import Reporter
from gateway_cli.session import EXIT_UNDER_WAY, CommandError, confirm
from gateway_core.api.ids import id_to_name
from gateway_core.api.resource import Object, Resource

REQUIRED = inspect.Parameter.empty
Text = str | Callable[[Document], str]

WAIT_SECONDS = 300.0
PAUSE_SECONDS = 0.5

LabelSelector = Annotated[
    str,
    typer.Option("--selector", "-l", metavar="LABELS", help="Only with these labels, as kubectl."),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Then print each change, until Ctrl-C.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Maximum number, the newest first.")
]


class StillThere(CommandError):
    """A deleted object is there after `WAIT_SECONDS`."""

    exit_code = EXIT_UNDER_WAY


async def _name(_: Cluster, given: str) -> str:
    return id_to_name(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """A kind as the command line has it.

    `columns` are words `TITLE=field`, with `>` for numbers; `show` are fields that people see in
    another form than scripts. `settings` are options by the field of the spec that each sets, or a
    pair of it and the option. `complete` brings a status up to date, `find` gives the object's name
    of what the user wrote, `ask` the question before it is deleted.
    """

    kind: type[Resource]
    word: str
    describe: Callable[[Object], Document]
    columns: str
    argument: Any
    help: Mapping[str, str] = field(default_factory=dict)
    show: Mapping[str, Callable[[Document], Any]] = field(default_factory=dict)
    filters: Mapping[str, Filter] = field(default_factory=dict)
    limit: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    switches: Mapping[str, Switch] = field(default_factory=dict)
    create: Create | None = None
    delete: bool = False
    panel: str | None = None
    complete: Callable[[Cluster, Object], Awaitable[Object]] | None = None
    find: Callable[[Cluster, str], Awaitable[str]] = _name
    ask: Callable[[Cluster, str], Awaitable[str]] | None = None

    def make_app(self) -> typer.Typer:
        """The noun's commands. Without one, `list` is meant."""
        app = typer.Typer(add_completion=False, cls=opt.ListingGroup)
        filters = {name: (each.option, None) for name, each in self.filters.items()}
        listed = {
            **filters,
            "limit": (Limit, self.limit),
            "selector": (LabelSelector, ""),
            "watch": (Watch, False),
        }
        self._add(app, "list", f"List {self.word}s.", listed, self._list)
        named = {"target": (self.argument, REQUIRED)}
        self._add(app, "describe", f"Show one {self.word}.", named, self._show)
        if self.create is not None:
            self._add(app, "create", self.create.help, self._list_create(), self._create)
        if self.settings:
            options = {
                **named,
                **{name: (self._option(name), None) for name in self.settings},
                **({"clear": (make_clear(words), None)} if (words := self._clearable()) else {}),
            }
            self._add(app, "set", f"Change fields of the {self.word}.", options, self._set)
        for verb, switch in self.switches.items():
            asked = {"yes": (opt.Yes, False)} if switch.question else {}
            self._add(app, verb, switch.help, {**named, **asked}, self._make_switch(switch))
        if self.delete:
            text = f"Delete the {self.word}, and wait until it is gone."
            self._add(app, "delete", text, {**named, "yes": (opt.Yes, False)}, self._delete)
        return app

    def make_spec(self, given: Given) -> Patch:
        """The fields of the spec that the options given by name set; None gives none."""
        return build_spec({get_path(self.settings[name]): v for name, v in given.items()})

    def print_changed(self, obj: Object, text: Text, output: Format) -> None:
        """Print what was done to the object; for scripts its document after the change."""
        document = self.describe(obj)
        done = text(document) if callable(text) else text
        print_done(f"{self.word} {document['name']} {done}", document, output)

    def change(
        self,
        name: str,
        patch: Patch | Callable[[Object], Patch | None],
        text: Text,
        namespace: str | None,
        output: Format,
    ) -> None:
        """Change fields of an object and print what it is now; null takes a field out."""
        decide = patch if callable(patch) else lambda _: patch

        async def run(cluster: Cluster) -> Object:
            return await cluster.change(self.kind, await self.find(cluster, name), decide)

        self.print_changed(on_cluster(namespace, run), text, output)

    def remove(self, name: str, namespace: str | None, output: Format) -> None:
        """Delete an object, wait until it is gone, and say so."""

        async def run(cluster: Cluster) -> None:
            await cluster.delete(self.kind, name)
            obj = await look(cluster)
            deadline = time.monotonic() + WAIT_SECONDS
            if obj is None:
                return
            async with Reporter.on_stderr().stage(f"removing what belongs to {self.word} {name}"):
                while obj is not None:
                    if time.monotonic() > deadline:
                        text = f"{self.word} {name} is still there: {explain_stay(obj)}"
                        raise StillThere(f"{text}. The operator goes on, and removes it then")
                    await asyncio.sleep(PAUSE_SECONDS)
                    obj = await look(cluster)

        async def look(cluster: Cluster) -> Object | None:
            """The object as long as it is being deleted; another one of its name is none."""
            found = await cluster.list_all(self.kind, **{"metadata.name": name})
            return found[0] if found and found[0]["metadata"].get("deletionTimestamp") else None

        on_cluster(namespace, run, interrupted="the deletion goes on without this command")
        print_done(f"{self.word} {name} is deleted", {"name": name, "deleted": True}, output)

    def add_limit(self, app: typer.Typer, done: str, about: str) -> None:
        """Add `limit set` and `limit clear`, of a kind whose spec has a SpendLimit."""
        group = typer.Typer(add_completion=False, no_args_is_help=True, help=about)
        app.add_typer(group, name="limit")

        def change(
            namespace: str | None,
            output: Format,
            target: str,
            amount: int | None = None,
            window: str | None = None,
        ) -> None:
            limit = make_limit(amount, window)
            text: Text = lambda document: f"{done} {show_limit(document)}"  # noqa: E731
            patch = {"spec": {"limit": limit}}
            self.change(
                target, patch, text if limit else "has no limit of its own", namespace, output
            )

        target = {"target": (self.argument, REQUIRED)}
        amount = {"amount": (opt.Dollars, REQUIRED), "window": (opt.WindowOption, REQUIRED)}
        self._add(group, "set", "Limit it to DOLLARS in a window.", {**target, **amount}, change)
        self._add(group, "clear", "Remove its limit; others that apply stay.", target, change)

    def _add(
        self,
        app: typer.Typer,
        name: str,
        text: str,
        options: Mapping[str, tuple[Any, Any]],
        run: Callable[..., None],
    ) -> None:
        """Add a command with these options, as (type, default), and those that all have."""
        options = {
            **options,
            "namespace": (opt.Namespace, None),
            "output": (Output, "table"),
        }

        def call(**given: Any) -> None:
            run(given.pop("namespace"), given.pop("output"), **given)

        parameters = [
            inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
            for word, (kind, value) in options.items()
        ]
        # typer reads a function's options from its signature
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {word: kind for word, (kind, _) in options.items()}
        app.command(name, help=self.help.get(name, text), rich_help_panel=self.panel)(call)

    def _list(
        self,
        namespace: str | None,
        output: Format,
        limit: int | None,
        selector: str,
        watch: bool,
        **given: Any,
    ) -> None:
        chosen = {name: value for name, value in given.items() if value is not None}
        paths = {
            each.path: each.convert(value)
            for name, value in chosen.items()
            if (each := self.filters[name]).path
        }
        columns = self._make_columns()

        def choose(found: Iterable[Object]) -> list[Document]:
            documents = [
                document
                for document in map(self.describe, found)
                if all(
                    keep(document, value)
                    for name, value in chosen.items()
                    if (keep := self.filters[name].keep)
                )
            ]
            if limit is not None:
                documents.sort(key=lambda document: document["created_at"] or "", reverse=True)
            return documents

        def cut(documents: list[Document]) -> list[Document]:
            if limit is not None and len(documents) > limit:
                print_note(f"there are {len(documents) - limit} more: --limit shows them")
            return documents[:limit]

        async def follow(cluster: Cluster) -> None:
            printer, shown = RowPrinter(columns, output), dict[str, Document]()
            is_first = True
            async for found, gone in cluster.follow(self.kind, selector, **paths):
                for name in gone:
                    shown.pop(name, None)
                changed = [each for each in choose(found) if shown.get(each["name"]) != each]
                shown.update((each["name"], each) for each in changed)
                printer.print(cut(changed) if is_first else changed)
                is_first = False

        if watch:
            on_cluster(namespace, follow, interrupted="")
            return
        found = on_cluster(namespace, lambda it: it.list_all(self.kind, selector, **paths))
        print_list(cut(choose(found)), columns, output, noun=f"{self.word}s")

    def _show(self, namespace: str | None, output: Format, target: str) -> None:
        async def read(cluster: Cluster) -> Object:
            obj = await cluster.get(self.kind, await self.find(cluster, target))
            return await self.complete(cluster, obj) if self.complete else obj

        document = self.describe(on_cluster(namespace, read))
        print_one(document, list_lines(document, self.show), output)

    def _list_create(self) -> dict[str, tuple[Any, Any]]:
        create = self.create
        assert create is not None
        settings = {
            name: (self._option(name, create.more, required=name in create.required), default)
            for name in (*create.more, *self.settings)
            for default in (REQUIRED if name in create.required else None,)
        }
        ordered = sorted(settings.items(), key=lambda item: item[1][1] is not REQUIRED)
        return {"target": (create.argument, REQUIRED), **dict(ordered), **create.given}

    def _create(self, namespace: str | None, output: Format, target: str, **given: Any) -> None:
        create = self.create
        assert create is not None
        settings = {**create.more, **self.settings}
        spec = build_spec({get_path(settings[n]): given[n] for n in settings})

        async def run(cluster: Cluster) -> Object:
            chosen = await create.prepare(cluster, target, spec, given)
            labels = {"labels": create.labels(target)} if create.labels else {}
            try:
                return await cluster.create(self.kind, chosen, spec, **labels)
            except AlreadyThere:
                refuse_removed(await cluster.get(self.kind, chosen))
                raise

        self.print_changed(on_cluster(namespace, run), "is there", output)

    def _set(
        self,
        namespace: str | None,
        output: Format,
        target: str,
        clear: list[str] | None = None,
        **given: Any,
    ) -> None:
        spec = self.make_spec(given)
        for word in clear or ():
            for option in (word.replace("-", "_"), f"deny_{word}"):
                if given.get(option) is not None:
                    raise typer.BadParameter(f"--clear {word} cannot be asked for here")
                if option in self.settings:
                    spec[get_path(self.settings[option])] = None
        if not spec:
            example = next(iter(self.settings)).replace("_", "-")
            raise typer.BadParameter(f"name what is to be changed, e.g. --{example}")
        self.change(target, {"spec": spec}, "is changed", namespace, output)

    def _make_switch(self, switch: Switch) -> Callable[..., None]:
        def run(namespace: str | None, output: Format, target: str, yes: bool = True) -> None:
            if switch.question:
                confirm(switch.question.format(target), yes)
            self.change(target, {"spec": switch.patch}, switch.done, namespace, output)

        return run

    def _delete(self, namespace: str | None, output: Format, target: str, yes: bool) -> None:
        async def look(cluster: Cluster) -> tuple[str, str]:
            chosen = await self.find(cluster, target)
            question = f"Delete {self.word} {chosen}?"
            return chosen, await self.ask(cluster, chosen) if self.ask else question

        chosen, question = on_cluster(namespace, look)
        confirm(question, yes)
        self.remove(chosen, namespace, output)

    def _make_columns(self) -> list[Column]:
        columns = []
        for word in self.columns.split():
            title, _, field_name = word.rstrip(">").partition("=")
            name = field_name or title
            read = self.show.get(name, name)
            columns.append(Column(title.replace("_", " ").upper(), read, word.endswith(">")))
        return columns

    def _option(
        self, name: str, more: Mapping[str, Any] | None = None, *, required: bool = False
    ) -> Any:
        """The option of a setting: its own, or one made of the API type's field."""
        setting = {**(more or {}), **self.settings}[name]
        if not isinstance(setting, str):
            return setting[1]
        kind, text = read_field(self.kind, setting)
        if get_origin(kind) is list:
            text += " May be repeated."
        return Annotated[kind if required else kind | None, typer.Option(help=text)]

    def _clearable(self) -> list[str]:
        """Settings that may be absent from the spec."""
        parts = self.kind.model_fields["spec"].annotation.model_fields  # type: ignore[union-attr]
        absent = {part.alias for part in parts.values() if not part.is_required()}
        names = [n for n, s in self.settings.items() if get_path(s) in absent]
        kinds = {n: read_field(self.kind, get_path(self.settings[n]))[0] for n in names}
        words = [n for n in names if kinds[n] is not bool and not n.startswith("deny_")]
        return [word.replace("_", "-") for word in words]
