"""The nouns of the command line, each loaded when it is called.

Loading all would make every `gatewayctl --help` and every completion wait for clients and schemas
that it does not need.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

ADMIN = "Administration (kubectl credentials)"
TASKS = "Tasks"
STORAGE = "Files and batches (an API key)"
OPERATION = "Running a gateway"


@dataclass(frozen=True, slots=True)
class Noun:
    """A command or group of commands: where its Typer app is, and its line in the help."""

    module: str
    help: str
    panel: str


NOUNS = {
    "accounts": Noun("gateway_cli.admin.accounts", "Who pays, and under which limits.", ADMIN),
    "users": Noun("gateway_cli.admin.users", "People, and their roles in accounts.", ADMIN),
    "keys": Noun("gateway_cli.admin.keys", "What opens the API, and how far.", ADMIN),
    "guardrails": Noun(
        "gateway_cli.admin.guardrails", "Limits that some keys of an account share.", ADMIN
    ),
    "fund": Noun("gateway_cli.admin.funds", "Add money to an account.", ADMIN),
    "usage": Noun("gateway_cli.admin.usage", "What was called and charged.", ADMIN),
    "apply": Noun(
        "gateway_cli.install.apply",
        "Apply objects (server-side): make them, or change the fields that the files name.",
        ADMIN,
    ),
    "tasks": Noun(
        "gateway_cli.admin.tasks", "Make and follow tasks with a key; see all as an admin.", TASKS
    ),
    "files": Noun("gateway_cli.rest.files", "Bring Files up, fetch and delete them.", STORAGE),
    "uploads": Noun(
        "gateway_cli.rest.uploads", "Bring files up in parts; go on after a break.", STORAGE
    ),
    "batches": Noun(
        "gateway_cli.rest.batches", "Run the moderations of a JSONL file, and follow it.", STORAGE
    ),
    "local": Noun(
        "gateway_cli.local.commands",
        "Run the whole gateway on this machine, on a real control plane.",
        OPERATION,
    ),
    "install": Noun(
        "gateway_cli.install.commands",
        "The steps of an installation in a cluster; each may be repeated.",
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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, loaded."""
        if args and args[0] in NOUNS:
            self.commands[args[0]] = load_noun(args[0])
        return super().resolve_command(ctx, args)


def load_noun(name: str) -> Any:
    """The noun's whole command, with the help that the list of nouns shows."""
    noun = NOUNS[name]
    app: typer.Typer = importlib.import_module(noun.module).app
    command = typer.main.get_command(app)
    command.name = name
    if isinstance(command, TyperGroup):
        command.help = noun.help
    return command
