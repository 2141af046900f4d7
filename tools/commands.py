"""docs/gatewayctl.md: the reference of the command line, made by Typer from its commands."""

import re
from typing import Any

from typer import Context
from typer.cli import get_docs_for_click

from gateway_cli.nouns import NOUNS, load_noun

_REPEATED = re.compile(
    r"\*\*Commands\*\*:\n\n(?:\* .*\n)+\n?|\* `--help`: .*\n|\*\*Options\*\*:\n\n(?=\* `--help`)"
)
"""What each command has, or what the headings below it say."""


def build_command_reference(introduction: str) -> str:
    """Return the page: the introduction, then every command with its arguments and options."""
    parts = [introduction.rstrip(), *(_describe(name, load_noun(name)) for name in NOUNS)]
    return "\n\n".join(parts) + "\n"


def _describe(name: str, command: Any) -> str:
    context = Context(command, info_name=name)
    text = get_docs_for_click(
        obj=command, ctx=context, indent=1, name=name, call_prefix="gatewayctl"
    )
    text = re.sub(r"\n{3,}", "\n\n", _REPEATED.sub("", text))
    return re.sub(r"^(#+) `gatewayctl (.*)`$", r"\1 \2", text, flags=re.M).strip()
