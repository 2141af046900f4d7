"""Limits of keys and guardrails as the command line gives and shows them."""

from enum import StrEnum
from typing import Any

import typer

from gateway_cli.output import Column
from gateway_core.api.limits import Window
from gateway_core.api.resource import Resource


class Clearable(StrEnum):
    """Restrictions that `set --clear` can take away."""

    RPM = "rpm"
    CACHE = "cache"
    MODEL = "model"
    PROVIDER = "provider"
    EXPIRES = "expires"
    DESCRIPTION = "description"


FIELDS = {
    "display_name": "displayName",
    "description": "description",
    "rpm": "requestsPerMinute",
    "cache": "cacheSeconds",
    "model": "allowedModels",
    "deny_model": "deniedModels",
    "provider": "allowedProviders",
    "deny_provider": "deniedProviders",
    "expires": "expirationTime",
}
"""Option to field of the spec of a key or guardrail."""

BUDGET_LINES = (
    Column("Limit", lambda budget: show_limit(budget)),
    Column("Used", "used"),
    Column("Remaining", "remaining"),
    Column("Resets", "resets_at"),
    Column("Calls a minute", "requests_per_minute"),
    Column("Cache seconds", lambda it: it.get("cache_seconds")),
    Column("Allowed models", lambda it: _show_entries(it["allowed_models"])),
    Column("Denied models", lambda it: it.get("denied_models")),
    Column("Allowed providers", lambda it: _show_entries(it["allowed_providers"])),
    Column("Denied providers", lambda it: it.get("denied_providers")),
)


def make_limit(micros: int | None, window: Window | None) -> dict[str, Any] | None:
    """`spec.limit` of both options; a usage error where one is there without the other."""
    if (micros is None) != (window is None):
        raise typer.BadParameter(
            "--limit and --window go together, e.g. --limit 25 --window weekly"
        )
    return None if micros is None else {"micros": micros, "window": window}


def show_limit(budget: Any) -> str | None:
    """`25.00 weekly`, or None without a limit."""
    return None if budget["limit"] is None else f"{budget['limit']} {budget['window']}"


def name_fields(**options: Any) -> dict[str, Any]:
    """The fields of a spec that options give; an option that is None gives none."""
    return {FIELDS[name]: value for name, value in options.items() if value is not None}


def merge_fields(
    given: dict[str, Any], cleared: list[Clearable] | None, kind: type[Resource]
) -> dict[str, Any]:
    """The patch of a key or guardrail: the fields given, and null for what is cleared.

    A usage error where that is nothing, or a field is both.
    """
    known = kind.model_fields["spec"].annotation.model_fields  # type: ignore[union-attr]
    aliases = {field.alias for field in known.values()}
    change = dict(given)
    for word in cleared or ():
        named = [FIELDS[name] for name in (str(word), f"deny_{word}") if name in FIELDS]
        fields = [field for field in named if field in aliases]
        if not fields or any(field in change for field in fields):
            raise typer.BadParameter(f"--clear {word} cannot be asked for here")
        change |= dict.fromkeys(fields)
    if not change:
        raise typer.BadParameter("name what is to be changed, e.g. --rpm 60 or --clear rpm")
    return {"spec": change}


def _show_entries(entries: list[str] | None) -> Any:
    """An empty list is no absent one: it allows nothing."""
    return "none at all" if entries == [] else entries
