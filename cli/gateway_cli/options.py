"""Options that many commands share: their parsers, and the completion of names in the shell."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gateway_cli.cluster.client import open_cluster
from gateway_cli.cluster.flags import select_cluster
from gateway_cli.session import SELECTED, CommandError
from gateway_core.api import account
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import head_of, read_id
from gateway_core.api.key import GatewayKey
from gateway_core.api.limits import Window
from gateway_core.api.model import GatewayModel
from gateway_core.api.money import MAX_MICROS, MICROS_PER_DOLLAR
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Object, Resource
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_time

_DOLLARS = re.compile(r"\$?(\d{1,10})(?:\.(\d{1,6}))?", re.ASCII)
_PERIOD = re.compile(r"(\d{1,9})([smhdw]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_SECONDS = 100 * 366 * 86_400
COMPLETION_SECONDS = 2.0
KEY_VARIABLE = "GATEWAY_API_KEY"


def parse_dollars(text: str) -> int:
    """Return the micro-dollars of `12`, `12.50` or `0.000125`: six decimals, exactly, no floats."""
    return _parse_amount(text, "neither sign nor commas")


def _parse_amount(text: str, lacks: str) -> int:
    """Return the micro-dollars of an amount; `lacks` says what it may not contain."""
    match = _DOLLARS.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no amount: dollars are written like 25 or 12.50, with a point, at most"
            f" six decimals, and {lacks}"
        )
    micros = int(match[1]) * MICROS_PER_DOLLAR + int((match[2] or "").ljust(6, "0"))
    if micros > MAX_MICROS:
        raise typer.BadParameter(f"{text} is more than can be counted")
    return micros


def parse_change(text: str) -> int:
    """Return the micro-dollars of an amount that may have a minus sign, and is not 0."""
    sign, amount = (-1, text[1:]) if text.startswith("-") else (1, text)
    micros = _parse_amount(amount, "no commas")
    if micros == 0:
        raise typer.BadParameter("the amount must not be 0")
    return sign * micros


def parse_period(text: str | int) -> int:
    """Return the seconds of `90`, `90s`, `15m`, `24h`, `7d` or `2w`; a default in seconds stays."""
    if isinstance(text, int):
        return text
    match = _PERIOD.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no period: it is written like 90s, 15m, 24h, 7d or 2w"
        )
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > MOST_SECONDS:
        raise typer.BadParameter(f"{text} is more than a century")
    return seconds


def parse_moment(text: str) -> str:
    """Return RFC 3339 in UTC of a time, of a date (its 00:00 UTC), or of a period from now."""
    moment = _read_moment(text, +1, "30d for a time from now")
    if moment <= datetime.now(UTC):
        raise typer.BadParameter(f"{text} is over")
    return format_time(moment)


def parse_since(text: str) -> str:
    """Return RFC 3339 in UTC of a time, of a date (its 00:00 UTC), or of a period before now."""
    return format_time(_read_moment(text, -1, "15m or 7d for a time before now"))


def parse_day(text: str) -> str:
    """Return the UTC day, `2026-11-21`, of a date, of a time, or of a period of days before now."""
    word = text.strip().lower()
    if _PERIOD.fullmatch(word) and parse_period(word) < _UNITS["d"]:
        raise typer.BadParameter(
            f"{text!r} is no day: usage is counted by UTC days, so write 2026-11-21, or 7d for the"
            " day seven days ago"
        )
    return parse_since(text)[:10]


def _read_moment(text: str, sign: int, example: str) -> datetime:
    """Return a time, 00:00 UTC of a date, or the time a period from now, in the sign's direction.

    `example` is a period in the error's words.
    """
    word = text.strip()
    if _PERIOD.fullmatch(word.lower()):
        return datetime.now(UTC) + sign * timedelta(seconds=parse_period(word))
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time: it is written like 2027-01-31, 2027-01-31T18:00:00Z, or"
            f" {example}"
        ) from None
    if moment.tzinfo is None and "T" in word.upper():
        raise typer.BadParameter(f"{text!r} lacks its offset: add Z for UTC, or e.g. +02:00")
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_pair(entry: str, option: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`."""
    name, equals, value = entry.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{option} {entry!r} is written NAME=VALUE")
    return name, value


class CommandGroup(TyperGroup):
    """A group of commands whose error for an unknown command lists its commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name."""
        name = args[0]
        is_known = name.startswith("-") or self.get_command(ctx, name) is not None
        if not is_known and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. Commands: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)


class ListingGroup(CommandGroup):
    """A group of commands of which `list` is meant where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments, with `list` before options alone."""
        named = bool(args) and (not args[0].startswith("-") or self.commands.keys() & {*args})
        if not named and "--help" not in args and not ctx.resilient_parsing:
            args = ["list", *args]
        return super().parse_args(ctx, args)


def complete(kind: type[Resource]) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return the completion of names of the cluster's objects; any failure completes nothing."""

    async def list_objects(namespace: str | None) -> list[Object]:
        async with open_cluster(namespace, call_seconds=COMPLETION_SECONDS) as cluster:
            return await cluster.list_all(kind)

    def read_names(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        # the options before the noun name the cluster; their command is not run here
        SELECTED.set(select_cluster(ctx.find_root().params))
        with contextlib.suppress(CommandError, TimeoutError, OSError):
            found = asyncio.run(list_objects(ctx.params.get("namespace")))
            pairs = sorted(_describe(kind, obj) for obj in found)
            return [(name, text) for name, text in pairs if name.startswith(incomplete)]
        return []

    return read_names


def _describe(kind: type[Resource], obj: Object) -> tuple[str, str]:
    """Return the word that names an object, and a text beside it."""
    spec, name = obj["spec"], obj["metadata"]["name"]
    if kind is GatewayModel:
        return spec["modelId"], spec.get("service", "")
    phase = (obj.get("status") or {}).get("phase")
    return name, spec.get("displayName") or spec.get("type") or phase or ""


def name_of(kind: type[Resource], metavar: str = "", text: str = "") -> Any:
    """Return the argument that names an object of the kind, with its completion."""
    return typer.Argument(
        metavar=metavar or kind.kind_name.removeprefix("Gateway").upper(),
        help=text or f"A {kind.kind_name}.",
        autocompletion=complete(kind),
    )


def id_of(prefix: str, noun: str) -> Any:
    """Return the argument with the id of a task, batch, file or upload, or its object's name."""

    def read(text: str) -> str:
        return read_id(prefix, text)

    head = head_of(prefix)
    name = "" if head == f"{prefix}-" else f", or its object's name, {prefix}-…"
    return typer.Argument(
        help=f"Id of the {noun}, {head}…{name}",
        metavar=f"{prefix.upper()}_ID",
        callback=read,
    )


def pick(kind: type[Resource], text: str, *names: str, **more: Any) -> Any:
    """Return an option whose value is the name of an object of the kind."""
    return typer.Option(*names, help=text, autocompletion=complete(kind), **more)


def only_of(kind: type[Resource], *names: str) -> Any:
    """Return the option of a list that chooses by the name of an object of the kind."""
    word = kind.kind_name.removeprefix("Gateway").lower()
    return Annotated[str | None, pick(kind, f"Only of this {word}.", *names)]


def _find_namespace(
    ctx: typer.Context, parameter: typer.CallbackParam, value: str | None
) -> str | None:
    """Return the command's own option, else the one before the noun, else the environment's."""
    source = ctx.get_parameter_source(parameter.name or "")
    if source is not None and source.name == "COMMANDLINE":
        return value
    return SELECTED.get().namespace or value


Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        envvar="GATEWAY_NAMESPACE",
        callback=_find_namespace,
        help="The gateway's namespace.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

AccountName = Annotated[str, name_of(GatewayAccount)]
UserName = Annotated[str, name_of(GatewayUser)]
KeyName = Annotated[str, name_of(GatewayKey, text="A GatewayKey, or its id.")]
KeyNames = Annotated[list[str], name_of(GatewayKey, "KEY", "GatewayKeys, or their ids.")]
GuardrailName = Annotated[str, name_of(GatewayGuardrail, text="A GatewayGuardrail, or its id.")]
TaskName = Annotated[str, name_of(GatewayTask, text="A GatewayTask, or its id.")]
ProviderName = Annotated[str, name_of(GatewayProvider)]
ModelName = Annotated[str, name_of(GatewayModel, text="A modelId or GatewayModel.")]

OfAccount = Annotated[str, pick(GatewayAccount, "The account.", "--account", "-a")]
MemberOf = Annotated[
    str | None,
    pick(GatewayAccount, "An account of which the user becomes a member.", "--account", "-a"),
]
Role = Annotated[
    account.Role, typer.Option(help="owner, admin and member may create; viewer may only read.")
]

Dollars = Annotated[int, typer.Argument(parser=parse_dollars, metavar="DOLLARS")]
PaidDollars = Annotated[
    int | None, typer.Option(parser=parse_dollars, metavar="DOLLARS", help="Initial funds.")
]
LimitDollars = Annotated[
    int | None,
    typer.Option(
        "--limit",
        parser=parse_dollars,
        metavar="DOLLARS",
        help="Maximum that it may spend in --window.",
    ),
]
_WINDOW_HELP = "1h, 1d and 7d are trailing windows; the others begin at 00:00 UTC."
LimitWindow = Annotated[Window | None, typer.Option("--window", help=_WINDOW_HELP)]
WindowOption = Annotated[Window, typer.Option("--window", help=_WINDOW_HELP)]
ModelEntries = Annotated[
    list[str] | None,
    pick(GatewayModel, "An allowed model, or a prefix such as veo-*; may be repeated.", "--model"),
]
Expiration = Annotated[
    str | None,
    typer.Option(
        "--expires",
        parser=parse_moment,
        metavar="TIME",
        help="A time, or a period from now such as 30d.",
    ),
]
PepperSecret = Annotated[
    str | None,
    typer.Option(
        envvar="GATEWAY_PEPPER_SECRET",
        help="The Secret of id-key and pepper-1; found automatically if there is one.",
    ),
]
SecretsFolder = Annotated[
    Path | None,
    typer.Option(
        envvar="GATEWAY_SECRETS_DIR", help="A folder with them instead, like the local run's."
    ),
]

# Options of commands with an API key
BaseUrl = Annotated[str, typer.Option(envvar="GATEWAY_BASE_URL", help="The API's address.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        allow_dash=True,
        help=f"A file with the API key, - for standard input; else ${KEY_VARIABLE}.",
    ),
]
Service = Annotated[
    str, typer.Option(envvar="GATEWAY_SERVICE", help="Provider segment of the REST path.")
]
Action = Annotated[str, typer.Option(help="The operation's second segment.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(help="Key of an earlier attempt: returns what it created, and creates nothing."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for its end.")]
Timeout = Annotated[
    int,
    typer.Option(
        "--timeout",
        parser=parse_period,
        metavar="PERIOD",
        help="How long to wait, e.g. 15m; then the exit code is 3.",
    ),
]
Download = Annotated[
    Path | None,
    typer.Option(
        file_okay=False, help="Download its results into this folder, which is created if missing."
    ),
]
Lifetime = Annotated[
    int | None,
    typer.Option(parser=parse_period, metavar="PERIOD", help="How long it is kept, 1h to 30d."),
]
MostResults = Annotated[int, typer.Option("--limit", min=1, help="Maximum number, newest first.")]
