"""The commands that every kind has: list, describe, create, set, delete, limits, and switches.

They are made from a row of `gateway_cli.admin.table`. Options come from the API types: their
types, and the first sentence of a field's description as help.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin import fields
from gateway_cli.admin.references import warn_of_names
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import AlreadyThere, explain_stay, refuse_removed
from gateway_cli.cluster.gateways import require_gateway
from gateway_cli.commands import REQUIRED, Options, cluster_command
from gateway_cli.output import (
    Column,
    Document,
    Done,
    Format,
    Output,
    RowPrinter,
    count,
    list_lines,
    print_list,
    print_note,
    print_one,
    show_done,
)
from gateway_cli.progress import Reporter
from gateway_cli.session import EXIT_UNDER_WAY, CommandError, confirm
from gateway_core.api.ids import id_to_name
from gateway_core.api.resource import Object, Resource

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
    another form than scripts. `settings` are words as of `read_settings`, and `options` those whose
    options are not made of the API type. `complete` brings a status up to date, `find` gives the
    object's name of what the user wrote, `ask` the question before it is deleted.
    """

    kind: type[Resource]
    word: str
    describe: Callable[[Object], Document]
    columns: str
    argument: Any
    help: Mapping[str, str] = field(default_factory=dict)
    show: Mapping[str, Callable[[Document], Any]] = field(default_factory=dict)
    filters: Mapping[str, fields.Filter] = field(default_factory=dict)
    limit: int | None = None
    settings: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    switches: Mapping[str, fields.Switch] = field(default_factory=dict)
    create: fields.Create | None = None
    delete: bool = False
    panel: str | None = None
    complete: Callable[[Cluster, Object], Awaitable[Object]] | None = None
    find: Callable[[Cluster, str], Awaitable[str]] = _name
    ask: Callable[[Cluster, str], Awaitable[str]] | None = None

    def make_app(self) -> typer.Typer:
        """Return the noun's commands. Without one, `list` is meant."""
        app = typer.Typer(add_completion=False, cls=opt.ListingGroup)
        self._add_list(app)
        add, target = partial(self._add, app), {"target": (self.argument, REQUIRED)}
        add("describe", f"Show one {self.word}.", self._describe, target, self._print)
        if self.create is not None:
            settings = self.list_options(self.create.required, self.create.settings)
            options = {"target": (self.create.argument, REQUIRED), **settings, **self.create.given}
            add("create", self.create.help, self._create, options)
        if self.settings:
            words = self._clearable()
            clear: Options = {"clear": (fields.make_clear(words), None)} if words else {}
            options = {**target, **self.list_options(), **clear}
            add("set", f"Change fields of the {self.word}.", self._set, options)
        for verb, switch in self.switches.items():
            asked: Options = {"yes": (opt.Yes, False)} if switch.question else {}
            add(verb, switch.help, partial(self._switch, switch=switch), {**target, **asked})
        if self.delete:
            text = f"Delete the {self.word}, and wait until it is gone."
            add("delete", text, self._delete, {**target, "yes": (opt.Yes, False)})
        if "limit" in self.kind.model_fields["spec"].annotation.model_fields:  # type: ignore[union-attr]
            about = "The most that may be spent in a window of time."
            group = typer.Typer(
                add_completion=False, cls=opt.CommandGroup, no_args_is_help=True, help=about
            )
            amount = {"amount": (opt.Dollars, REQUIRED), "window": (opt.WindowOption, REQUIRED)}
            text = "Limit it to DOLLARS in a window."
            self._add(group, "set", text, self._limit, {**target, **amount})
            text = "Remove its limit; others that apply stay."
            self._add(group, "clear", text, self._limit, target)
            app.add_typer(group, name="limit")
        return app

    def read_settings(self) -> dict[str, fields.Setting]:
        """Return the settings by the names of their options."""
        return fields.read_settings(self.kind, self.settings)

    def list_options(self, required: Sequence[str] = (), more: str = "") -> Options:
        """Return the options of the settings and of `more`, the required ones first."""
        settings = fields.read_settings(self.kind, f"{more} {self.settings}")
        return {
            name: (
                self.options.get(name) or setting.make_option(is_required),
                REQUIRED if is_required else None,
            )
            for is_required in (True, False)
            for name, setting in settings.items()
            if (name in required) is is_required
        }

    def tell(self, obj: Object, verb: str, detail: str = "") -> Done:
        """Return what was done to the object, in kubectl's words, and its document after it."""
        document = self.describe(obj)
        text = f"{self.word} {document['name']} {verb}"
        return f"{text}: {detail}" if detail else text, document

    async def change(
        self,
        cluster: Cluster,
        name: str,
        patch: fields.Patch | Callable[[Object], fields.Patch | None],
        detail: str | Callable[[Document], str] = "",
        verb: str = "updated",
    ) -> Done:
        """Change fields of an object; null takes a field out. `detail` is its state after it."""
        seen = ""

        def decide(obj: Object) -> fields.Patch | None:
            nonlocal seen
            seen = obj["metadata"]["resourceVersion"]
            return patch(obj) if callable(patch) else patch

        obj = await cluster.change(self.kind, await self.find(cluster, name), decide)
        await warn_of_names(cluster, obj)
        done = "unchanged" if obj["metadata"]["resourceVersion"] == seen else verb
        return self.tell(obj, done, detail(self.describe(obj)) if callable(detail) else detail)

    async def remove(self, cluster: Cluster, name: str) -> Done:
        """Delete an object, and wait until it is gone."""

        async def look() -> Object | None:
            """Return the object as long as it is being deleted, not another one of its name."""
            found = await cluster.list_all(self.kind, **{"metadata.name": name})
            return found[0] if found and found[0]["metadata"].get("deletionTimestamp") else None

        await cluster.delete(self.kind, name)
        deadline = time.monotonic() + WAIT_SECONDS
        if (obj := await look()) is not None:
            async with Reporter.on_stderr().stage(f"removing what belongs to {self.word} {name}"):
                while obj is not None:
                    if time.monotonic() > deadline:
                        text = f"{self.word} {name} is still there: {explain_stay(obj)}"
                        raise StillThere(f"{text}. The operator goes on, and removes it then")
                    await asyncio.sleep(PAUSE_SECONDS)
                    obj = await look()
        return f"{self.word} {name} deleted", {"name": name, "deleted": True}

    def _add(
        self,
        app: typer.Typer,
        name: str,
        text: str,
        run: Callable[..., Awaitable[Any]],
        options: Options,
        show: Callable[[Any, Format], None] | None = show_done,
    ) -> None:
        async def call(cluster: Cluster, **given: Any) -> Any:
            return await run(cluster, **given)

        cluster_command(
            app,
            show,
            name=name,
            options=options,
            interrupted="the deletion goes on without this command" if name == "delete" else "",
            help=self.help.get(name, text),
            rich_help_panel=self.panel,
        )(call)

    def _add_list(self, app: typer.Typer) -> None:
        options: Options = {
            **{
                name: (
                    each.option
                    or Annotated[str | None, typer.Option(help=f"Only of this {name}.")],
                    None,
                )
                for name, each in self.filters.items()
            },
            "limit": (Limit, self.limit),
            "selector": (LabelSelector, ""),
            "watch": (Watch, False),
            "output": (Output, "table"),
        }
        self._add(app, "list", f"List {self.word}s.", self._list, options, show=None)

    async def _list(
        self,
        cluster: Cluster,
        limit: int | None,
        selector: str,
        watch: bool,
        output: Format,
        **given: Any,
    ) -> None:
        filters = [
            (self.filters[name], value) for name, value in given.items() if value is not None
        ]
        paths = {each.path: each.convert(value) for each, value in filters if each.path}
        columns = self._make_columns()

        def choose(found: Iterable[Object]) -> list[Document]:
            documents = [
                document
                for document in map(self.describe, found)
                if all(each.keep(document, value) for each, value in filters if each.keep)
            ]
            if limit is not None:
                documents.sort(key=lambda document: document["created_at"] or "", reverse=True)
            return documents

        def cut(documents: list[Document]) -> list[Document]:
            if limit is not None and len(documents) > limit:
                rest = count(len(documents) - limit, f"more {self.word}")
                print_note(f"not shown: {rest}; --limit shows them")
            return documents[:limit]

        if not watch:
            found = await cluster.list_all(self.kind, selector, **paths)
            if not found:
                await require_gateway(cluster)
            print_list(cut(choose(found)), columns, output, noun=f"{self.word}s")
            return
        printer, shown = RowPrinter(columns, output), dict[str, Document]()
        is_first = True
        async for found, gone in cluster.follow(self.kind, selector, **paths):
            if is_first and not found:
                await require_gateway(cluster)
            for name in gone:
                shown.pop(name, None)
            changed = [each for each in choose(found) if shown.get(each["name"]) != each]
            shown.update((each["name"], each) for each in changed)
            printer.print(cut(changed) if is_first else changed)
            is_first = False

    async def _describe(self, cluster: Cluster, target: str) -> Document:
        obj = await cluster.get(self.kind, await self.find(cluster, target))
        return self.describe(await self.complete(cluster, obj) if self.complete else obj)

    def _print(self, document: Document, output: Format) -> None:
        print_one(document, list_lines(document, self.show), output)

    async def _create(self, cluster: Cluster, target: str, **given: Any) -> Done:
        create = self.create
        assert create is not None
        settings = fields.read_settings(self.kind, f"{create.settings} {self.settings}")
        spec = fields.build_spec(settings, given)
        name = await create.prepare(cluster, target, spec, given)
        labels = {"labels": create.labels(target)} if create.labels else {}
        try:
            created = await cluster.create(self.kind, name, spec, **labels)
            return self.tell(await warn_of_names(cluster, created), "created")
        except AlreadyThere:
            refuse_removed(await cluster.get(self.kind, name))
            raise

    async def _set(
        self, cluster: Cluster, target: str, clear: list[str] | None = None, **given: Any
    ) -> Done:
        settings = self.read_settings()
        spec = fields.build_spec(settings, given)
        for word in clear or ():
            for option in (word.replace("-", "_"), f"deny_{word}"):
                if given.get(option) is not None:
                    raise typer.BadParameter(f"--clear {word} cannot be asked for here")
                if option in settings:
                    spec[settings[option].path] = None
        if not spec:
            example = next(iter(settings)).replace("_", "-")
            raise typer.BadParameter(f"name what is to be changed, e.g. --{example}")
        return await self.change(cluster, target, {"spec": spec})

    async def _switch(
        self, cluster: Cluster, target: str, switch: fields.Switch, yes: bool = True
    ) -> Done:
        if switch.question:
            confirm(switch.question.format(target), yes)
        return await self.change(cluster, target, {"spec": switch.patch}, verb=switch.done)

    async def _limit(
        self, cluster: Cluster, target: str, amount: int | None = None, window: str | None = None
    ) -> Done:
        limit = fields.make_limit(amount, window)

        def describe(document: Document) -> str:
            return f"it may spend {fields.show_limit(document)}" if limit else "no limit of its own"

        return await self.change(cluster, target, {"spec": {"limit": limit}}, describe)

    async def _delete(self, cluster: Cluster, target: str, yes: bool) -> Done:
        name = await self.find(cluster, target)
        question = await self.ask(cluster, name) if self.ask else f"Delete {self.word} {name}?"
        confirm(question, yes)
        return await self.remove(cluster, name)

    def _make_columns(self) -> list[Column]:
        columns = []
        for word in self.columns.split():
            title, _, field_name = word.rstrip(">").partition("=")
            name = field_name or title
            read = self.show.get(name, name)
            columns.append(Column(title.replace("_", " ").upper(), read, word.endswith(">")))
        return columns

    def _clearable(self) -> list[str]:
        """Return the settings that may be absent from the spec."""
        return [
            name.replace("_", "-")
            for name, setting in self.read_settings().items()
            if not (setting.is_required or setting.kind is bool or "." in setting.path)
            and not name.startswith("deny_")
        ]
