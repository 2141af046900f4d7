"""The nouns of the command line, each loaded when it is called.

Loading all would make every `gatewayctl --help` and every completion wait for clients and schemas
that it does not need.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

from gateway_cli.cluster.flags import spell_out, take_flags

ADMIN = "Administration (kubectl credentials)"
TASKS = "Tasks"
MODELS = "Money and language models (an API key)"
STORAGE = "Files and batches (an API key)"
OPERATION = "Running a gateway"
TABLE = "gateway_cli.admin.table"


@dataclass(frozen=True, slots=True)
class NounEntry:
    """A command or group of commands: where its Typer app is, and its line in the help."""

    module: str
    help: str
    panel: str
    app: str = "app"
    """Its name in the module."""


NOUNS = {
    "accounts": NounEntry(
        "gateway_cli.admin.webhooks", "Payers, their money and limits.", ADMIN, "accounts"
    ),
    "users": NounEntry("gateway_cli.admin.users", "People and their roles in accounts.", ADMIN),
    "keys": NounEntry("gateway_cli.admin.keys", "API keys and their limits.", ADMIN),
    "guardrails": NounEntry(
        "gateway_cli.admin.guardrails", "Limits that several keys of an account share.", ADMIN
    ),
    "fund": NounEntry("gateway_cli.admin.funds", "Add money to an account.", ADMIN),
    "usage": NounEntry("gateway_cli.admin.usage", "Calls and charges.", ADMIN),
    "models": NounEntry(TABLE, "The catalog: prices, routes, health.", ADMIN, "models"),
    "prompts": NounEntry(TABLE, "Examples that users find with the MCP tool.", ADMIN, "prompts"),
    "clients": NounEntry(TABLE, "Applications that use OAuth.", ADMIN, "clients"),
    "grants": NounEntry(TABLE, "Access that users gave to applications.", ADMIN, "grants"),
    "providers": NounEntry(
        "gateway_cli.admin.providers", "Upstreams: readiness, health, a test call.", ADMIN
    ),
    "apply": NounEntry(
        "gateway_cli.install.apply",
        "Apply objects (server-side): create them, or change the fields in the files.",
        ADMIN,
    ),
    "tasks": NounEntry(
        "gateway_cli.admin.tasks",
        "Create and follow tasks with a key; manage all as an admin.",
        TASKS,
    ),
    "balance": NounEntry("gateway_cli.rest.balance", "The money of a key's account.", MODELS),
    "chat": NounEntry("gateway_cli.rest.chat", "Talk to a language model.", MODELS),
    "files": NounEntry("gateway_cli.rest.files", "Upload, download and delete Files.", STORAGE),
    "uploads": NounEntry("gateway_cli.rest.uploads", "Upload files in parts, resumably.", STORAGE),
    "batches": NounEntry(
        "gateway_cli.rest.batches", "Run the moderations of a JSONL file.", STORAGE
    ),
    "status": NounEntry("gateway_cli.inspection.status", "A gateway at a glance.", OPERATION),
    "doctor": NounEntry(
        "gateway_cli.inspection.doctor", "Find what is wrong, and what to do.", OPERATION
    ),
    "top": NounEntry("gateway_cli.inspection.top", "Rates, spending and errors, live.", OPERATION),
    "record": NounEntry(
        "gateway_cli.admin.record",
        "Save all custom resources, and restore them into an empty cluster.",
        OPERATION,
    ),
    "local": NounEntry(
        "gateway_cli.local.commands",
        "Run the whole gateway on this machine with a real control plane.",
        OPERATION,
    ),
    "completion": NounEntry(
        "gateway_cli.completion", "Print the completion of a shell.", OPERATION
    ),
    "install": NounEntry(
        "gateway_cli.install.commands",
        "Steps of an installation in a cluster; each may be repeated.",
        OPERATION,
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
        """The arguments that are left, and the options before them in the context."""
        return super().parse_args(ctx, list(spell_out(args)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, loaded."""
        if args and args[0] in NOUNS:
            command = self.commands[args[0]] = load_noun(args[0])
            flags = [
                option
                for option in self.params
                if not option.is_eager and option.name != "namespace"
            ]
            take_flags(command, flags)
        return super().resolve_command(ctx, args)


def load_noun(name: str) -> Any:
    """The noun's whole command, with the help that the list of nouns shows."""
    noun = NOUNS[name]
    app: typer.Typer = getattr(importlib.import_module(noun.module), noun.app)
    command = typer.main.get_command(app)
    command.name = name
    if isinstance(command, TyperGroup):
        command.help = noun.help
    return command
