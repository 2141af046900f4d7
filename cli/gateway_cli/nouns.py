"""The nouns of the command line, each loaded when it is called.

Loading all would make every `gatewayctl --help` and every completion wait for clients and schemas
that it does not need.
"""

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from gateway_cli.cluster.flags import spell_out, take_flags

ADMIN = "Administration (kubectl credentials)"
TASKS = "Tasks"
MODELS = "Money and language models (an API key)"
STORAGE = "Files and batches (an API key)"
OPERATION = "Running a gateway"


class NounEntry(NamedTuple):
    """A command or group of commands: its line in the help, and where its Typer app is."""

    panel: str
    help: str
    module: str
    app: str = "app"
    """Its name in the module."""


_TABLE = "admin.table"
NOUNS = {
    "accounts": NounEntry(ADMIN, "Payers, their money and limits.", "admin.webhooks", "accounts"),
    "users": NounEntry(ADMIN, "People and their roles in accounts.", "admin.users"),
    "keys": NounEntry(ADMIN, "API keys and their limits.", "admin.keys"),
    "guardrails": NounEntry(
        ADMIN, "Limits that several keys of an account share.", "admin.guardrails"
    ),
    "fund": NounEntry(ADMIN, "Add money to an account.", "admin.funds"),
    "usage": NounEntry(ADMIN, "Calls and charges.", "admin.usage"),
    "models": NounEntry(ADMIN, "The catalog: prices, routes, health.", _TABLE, "models"),
    "prompts": NounEntry(ADMIN, "Examples that users find with the MCP tool.", _TABLE, "prompts"),
    "clients": NounEntry(ADMIN, "Applications that use OAuth.", _TABLE, "clients"),
    "grants": NounEntry(ADMIN, "Access that users gave to applications.", _TABLE, "grants"),
    "providers": NounEntry(ADMIN, "Upstreams: readiness, health, a test call.", "admin.providers"),
    "apply": NounEntry(
        ADMIN,
        "Apply objects (server-side): create them, or change the fields in the files.",
        "install.apply",
    ),
    "tasks": NounEntry(
        TASKS, "Create and follow tasks with a key; manage all as an admin.", "admin.tasks"
    ),
    "balance": NounEntry(MODELS, "The money of a key's account.", "rest.balance"),
    "chat": NounEntry(MODELS, "Talk to a language model.", "rest.chat"),
    "files": NounEntry(STORAGE, "Upload, download and delete Files.", "rest.files"),
    "uploads": NounEntry(STORAGE, "Upload files in parts, resumably.", "rest.uploads"),
    "batches": NounEntry(STORAGE, "Run the moderations of a JSONL file.", "rest.batches"),
    "status": NounEntry(OPERATION, "A gateway at a glance.", "inspection.status"),
    "doctor": NounEntry(OPERATION, "Find what is wrong, and what to do.", "inspection.doctor"),
    "top": NounEntry(OPERATION, "Rates, spending and errors, live.", "inspection.top"),
    "record": NounEntry(
        OPERATION,
        "Save all custom resources, and restore them into an empty cluster.",
        "admin.record",
    ),
    "local": NounEntry(
        OPERATION,
        "Run the whole gateway on this machine with a real control plane.",
        "local.commands",
    ),
    "completion": NounEntry(OPERATION, "Print the completion of a shell.", "completion"),
    "install": NounEntry(
        OPERATION,
        "Steps of an installation in a cluster; each may be repeated.",
        "install.commands",
    ),
}


class NounGroup(TyperGroup):
    """A group that shows its nouns by their help, and loads the one that is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, noun in NOUNS.items():
            shown = TyperGroup(name=name, help=noun.help, rich_help_panel=noun.panel)
            self.commands.setdefault(name, shown)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments that are left, and the options before them in the context."""
        return super().parse_args(ctx, list(spell_out(args)))

    def invoke(self, ctx: Any) -> Any:
        """Return the result of the command. BadParameter without the words of pydantic."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as refused:
            refused.message = refused.message.removeprefix("Value error, ")
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, loaded."""
        if args and args[0] in NOUNS:
            command = self.commands[args[0]] = load_noun(args[0])
            flags = [
                option
                for option in self.params
                if not option.is_eager and option.name != "namespace"
            ]
            take_flags(command, flags)
        name = args[0] if args and not ctx.resilient_parsing else "-"
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}. Commands: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)


def load_noun(name: str) -> Any:
    """Return the noun's whole command, with the help that the list of nouns shows."""
    noun = NOUNS[name]
    app: typer.Typer = getattr(importlib.import_module(f"gateway_cli.{noun.module}"), noun.app)
    command = typer.main.get_command(app)
    command.name = name
    if isinstance(command, TyperGroup):
        command.help = noun.help
    return command
