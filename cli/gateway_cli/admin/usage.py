"""`gatewayctl usage`: what was called and charged, by account, key, model, operation and day.

Read from GatewayUsage: a day's calls are there within seconds of their ends. Days older than eight
are in the account's sum of past days and broken down no more; `complete` is false where a period
that was asked for has any of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import dollars
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.gateways import require_gateway
from gateway_cli.commands import cluster_command
from gateway_cli.output import Column, Format, count, print_list, print_note
from gateway_core.api.account import GatewayAccount
from gateway_core.api.resource import Object
from gateway_core.api.usage import GatewayUsage


class By(StrEnum):
    """Names that rows can be grouped by."""

    ACCOUNT = "account"
    KEY = "key"
    MODEL = "model"
    OPERATION = "operation"
    DAY = "day"


Row = dict[str, Any]
_FIELDS = {
    "requests": "requests",
    "failed": "failed",
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cost_micros": "chargedMicros",
}
UNNAMED = "-"
"""Shown for calls without a key (made with kubectl), and for rows beyond the limit of a day."""

app = typer.Typer(add_completion=False)

DayOption = Annotated[
    str | None,
    typer.Option(
        parser=opt.parse_day,
        metavar="DAY",
        help="A UTC day, such as 2026-11-21, or 7d for the day seven days ago.",
    ),
]


@dataclass(frozen=True, slots=True)
class Report:
    """Rows in groups, and their totals with what is known of the days before them."""

    by: list[str]
    rows: list[Row]
    totals: Row

    def show(self, output: Format) -> None:
        """Print the table, and a note about the days that it does not have."""
        columns = (
            *(Column(name.upper(), _name_column(name)) for name in self.by),
            Column("REQUESTS", "requests", right=True),
            Column("FAILED", "failed", right=True),
            Column("INPUT TOKENS", "input_tokens", right=True),
            Column("OUTPUT TOKENS", "output_tokens", right=True),
            Column("COST (USD)", "cost", right=True),
        )
        print_list(self.rows, columns, output, noun="usage", footer=self.totals)
        earlier = self.totals["earlier"]
        if earlier is None or output != "table":
            return
        day = earlier["through_day"]
        summed = f"{count(earlier['requests'], 'request')}, {earlier['cost']} USD"
        if self.totals["complete"]:
            print_note(f"before that, through {day}: {summed}")
        else:
            print_note(
                f"! days through {day} cannot be broken down here and are not in"
                f" the totals ({summed} in all); REST usage has 93 days"
            )


@cluster_command(app, Report.show)
async def usage(
    cluster: Cluster,
    account: Annotated[
        str | None,
        typer.Argument(help="Only of this account.", autocompletion=opt.complete(GatewayAccount)),
    ] = None,
    by: Annotated[
        list[By] | None, typer.Option(help="Grouping of the rows; may be repeated.")
    ] = None,
    since: DayOption = None,
    until: DayOption = None,
) -> Report:
    """Show calls and charges with totals: of one account by day, or of all by account."""
    if since and until and since > until:
        raise typer.BadParameter(f"--since {since} is after --until {until}")
    if account:
        await cluster.get(GatewayAccount, account)
    found = await cluster.list_all(GatewayUsage, "", **{"spec.accountName": account})
    if not found:
        await require_gateway(cluster)
    default = By.DAY if account else By.ACCOUNT
    wanted = list(dict.fromkeys(str(name) for name in by or [default]))
    first, last = since or "", until or "9999"
    days = [obj for obj in found if first <= obj["spec"].get("day", "") <= last]
    rows = group_rows((row for obj in days for row in list_rows(obj)), wanted)
    earlier = sum_earlier(found)
    if earlier and first > earlier["through_day"]:
        earlier = None
    complete = earlier is None or (since is None and until is None)
    return Report(wanted, rows, {**_add_up(rows), "earlier": earlier, "complete": complete})


def list_rows(obj: Object) -> list[Row]:
    """Return the rows of one day's object; the sum of past days has none."""
    spec = obj["spec"]
    return [
        {
            "account": spec["accountName"],
            "day": spec.get("day"),
            "key": row.get("keyName"),
            "model": row.get("modelId"),
            "operation": row.get("operation"),
            **_read_sums(row),
        }
        for row in (obj.get("status") or {}).get("rows") or ()
    ]


def group_rows(rows: Iterable[Row], by: Sequence[str]) -> list[Row]:
    """Return the rows' sums for each combination of the names in `by`, in order of these."""
    groups: defaultdict[tuple[str | None, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row)
    ordered = sorted(groups.items(), key=lambda item: [name or "" for name in item[0]])
    return [{**dict(zip(by, names, strict=True)), **_add_up(group)} for names, group in ordered]


def sum_earlier(found: Iterable[Object]) -> Row | None:
    """Return the sum of the past days without rows, and the newest of them; None without any."""
    past = [obj.get("status") or {} for obj in found if "day" not in obj["spec"]]
    past = [status for status in past if status.get("requests")]
    if not past:
        return None
    through = max(status.get("throughDay") or "" for status in past)
    return {"through_day": through, **_add_up([_read_sums(status) for status in past])}


def _read_sums(status: Mapping[str, Any]) -> Row:
    return {name: status.get(field, 0) for name, field in _FIELDS.items()}


def _add_up(rows: Sequence[Row]) -> Row:
    sums = {name: sum(row[name] for row in rows) for name in _FIELDS}
    return {**sums, "cost": dollars(sums["cost_micros"])}


def _name_column(name: str) -> Any:
    """Return a row's name for people; the totals have none."""
    return lambda row: (row[name] or UNNAMED) if name in row else None
