"""Options that many of the admin's commands share, and the completion of their values."""

from pathlib import Path
from typing import Annotated

import typer

from gateway_cli.admin.amounts import parse_dollars, parse_moment
from gateway_cli.admin.completion import (
    complete_accounts,
    complete_guardrails,
    complete_keys,
    complete_models,
    complete_tasks,
    complete_users,
)
from gateway_core.contract.limits import Window

Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", envvar="GATEWAY_NAMESPACE", help="The gateway's namespace."),
]

AccountName = Annotated[
    str, typer.Argument(help="A GatewayAccount.", autocompletion=complete_accounts)
]
UserName = Annotated[str, typer.Argument(help="A GatewayUser.", autocompletion=complete_users)]
KeyName = Annotated[
    str, typer.Argument(help="A GatewayKey, or its id.", autocompletion=complete_keys)
]
KeyNames = Annotated[
    list[str], typer.Argument(help="GatewayKeys, or their ids.", autocompletion=complete_keys)
]
GuardrailName = Annotated[
    str, typer.Argument(help="A GatewayGuardrail, or its id.", autocompletion=complete_guardrails)
]
TaskName = Annotated[
    str, typer.Argument(help="A GatewayTask, or its id.", autocompletion=complete_tasks)
]

AccountFilter = Annotated[
    str | None,
    typer.Option("--account", "-a", help="Of this account only.", autocompletion=complete_accounts),
]
OfAccount = Annotated[
    str, typer.Option("--account", "-a", help="The account.", autocompletion=complete_accounts)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

Dollars = Annotated[int, typer.Argument(parser=parse_dollars, metavar="DOLLARS")]
LimitDollars = Annotated[
    int | None,
    typer.Option(
        "--limit", parser=parse_dollars, metavar="DOLLARS", help="Most it may spend in --window."
    ),
]
LimitWindow = Annotated[
    Window | None,
    typer.Option(help="1h, 1d and 7d trail the clock; the others begin at 00:00 UTC."),
]
WindowOption = Annotated[
    Window,
    typer.Option("--window", help="1h, 1d and 7d trail the clock; the others begin at 00:00 UTC."),
]
RequestsPerMinute = Annotated[
    int | None,
    typer.Option("--rpm", min=1, max=1_000_000, help="Paid calls in any trailing 60 seconds."),
]
ModelEntries = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A model allowed, or a beginning such as veo-*; may be repeated.",
        autocompletion=complete_models,
    ),
]
ProviderEntries = Annotated[
    list[str] | None,
    typer.Option("--provider", help="A provider segment allowed; may be repeated."),
]
Expiration = Annotated[
    str | None,
    typer.Option(
        "--expires", parser=parse_moment, metavar="TIME", help="A time, or e.g. 30d from now."
    ),
]
PepperSecret = Annotated[
    str | None,
    typer.Option(
        envvar="GATEWAY_PEPPER_SECRET",
        help="The Secret of id-key and pepper-1; found by itself where there is one.",
    ),
]
SecretsFolder = Annotated[
    Path | None,
    typer.Option(
        envvar="GATEWAY_SECRETS_DIR", help="A folder that has them instead, as the local run's."
    ),
]
