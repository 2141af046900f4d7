"""`gatewayctl top`: rates, spending and errors of the last minutes, by account, model and provider.

Accounts' figures are of GatewayUsage, a few seconds behind; those of models and providers are the
health in their statuses, the mean of three minutes.
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_health, dollars
from gateway_cli.cluster.client import Cluster, open_cluster
from gateway_cli.cluster.gateways import require_gateway
from gateway_cli.output import (
    Column,
    Document,
    Output,
    clear_screen,
    print_data,
    print_list,
    print_note,
)
from gateway_cli.session import exit_on_error
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Object
from gateway_core.api.usage import GatewayUsage
from gateway_core.kube.clock import CLOCK

MINUTES = 5
"""Whole minutes before the present one, of which rates are computed."""

INTERVAL_SECONDS = 5
"""Between two looks."""
ACCOUNTS = (
    Column("ACCOUNT", "account"),
    Column("CALLS/MIN", "calls_per_minute", right=True),
    Column("ERRORS %", "error_percent", right=True),
    Column("USD/H", "cost_per_hour", right=True),
    Column("TOKENS/MIN", "tokens_per_minute", right=True),
    Column("CALLS TODAY", "requests_today", right=True),
    Column("USD TODAY", "cost_today", right=True),
)
HEALTH = (
    Column("CALLS/MIN", "calls_per_minute", right=True),
    Column("ERRORS %", "error_percent", right=True),
    Column("LATENCY MS", "latency_ms", right=True),
    Column("FIRST TOKEN MS", "first_token_ms", right=True),
    Column("HEALTH", "health"),
)

app = typer.Typer(add_completion=False)


@app.command()
def top(
    limit: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 10,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Show rates, spending and errors of the last minutes, busiest first, until Ctrl-C.

    With --output json or yaml, or where the output is no terminal, it looks once.
    """

    async def run() -> None:
        async with open_cluster(namespace) as cluster:
            await require_gateway(cluster)
            while True:
                found = await _look(cluster)
                if output != "table":
                    print_data(found, output)
                    return
                if sys.stdout.isatty():
                    clear_screen()
                _print(found, limit)
                if not sys.stdout.isatty():
                    return
                await asyncio.sleep(INTERVAL_SECONDS)

    with exit_on_error(interrupted=""):
        asyncio.run(run())


async def _look(cluster: Cluster) -> Document:
    now = CLOCK.now()
    usage = await cluster.list_all(GatewayUsage, **{"spec.day": now.date().isoformat()})
    providers = await cluster.list_all(GatewayProvider)
    models = await cluster.list_all(GatewayModel)
    return {
        "time": now.isoformat(timespec="seconds"),
        "accounts": sort_busiest(describe_rates(obj, now) for obj in usage),
        "models": sort_busiest(
            {"model": obj["spec"]["modelId"], **describe_health(obj)} for obj in models
        ),
        "providers": sort_busiest(
            {"provider": obj["metadata"]["name"], **describe_health(obj)} for obj in providers
        ),
    }


def describe_rates(obj: Object, now: datetime) -> Document:
    """Return rates of an account in the last whole minutes of its day, and sums of the day.

    In the first minutes of a day there are fewer.
    """
    status = obj.get("status") or {}
    this_minute = 60 * now.hour + now.minute
    first = max(0, this_minute - MINUTES)
    span = max(1, this_minute - first)
    minutes = [m for m in status.get("minutes") or () if first <= m["minute"] < this_minute]

    def add(field: str) -> int:
        return sum(minute.get(field, 0) for minute in minutes)

    requests = add("requests")
    return {
        "account": obj["spec"]["accountName"],
        "calls_per_minute": round(requests / span, 1),
        "error_percent": round(100 * add("failed") / requests) if requests else None,
        "cost_per_hour": dollars(round(60 * add("chargedMicros") / span)),
        "tokens_per_minute": round((add("inputTokens") + add("outputTokens")) / span),
        "requests_today": status.get("requests", 0),
        "cost_today": dollars(status.get("chargedMicros", 0)),
    }


def sort_busiest(rows: Iterable[Document]) -> list[Document]:
    """Return rows by calls a minute, the most first; then by name."""
    return sorted(rows, key=lambda row: (-(row["calls_per_minute"] or 0), next(iter(row.values()))))


def _print(found: Mapping[str, Any], limit: int) -> None:
    print_note(
        f"{found['time']}: the last {MINUTES} whole minutes by account, the last 3 by model and"
        " provider"
    )
    for noun, columns in (
        ("accounts", ACCOUNTS),
        ("models", (Column("MODEL", "model"), *HEALTH)),
        ("providers", (Column("PROVIDER", "provider"), *HEALTH)),
    ):
        rows = [row for row in found[noun] if row["calls_per_minute"] or noun == "accounts"]
        print_list(rows[:limit], columns, "table", noun=f"calls of {noun}")
        sys.stdout.write("\n")
