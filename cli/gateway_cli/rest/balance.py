"""`gatewayctl balance`: the money of the account that a key belongs to."""

from typing import TYPE_CHECKING

import typer

from gateway_cli.commands import rest_command
from gateway_cli.output import Column, Document, show_one
from gateway_core.api.money import MICROS_PER_CENT, to_decimal_text

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi


def _cents(title: str, field: str) -> Column:
    """Return the line of an amount in dollars."""

    def show(document: Document) -> str | None:
        cents = document.get(field)
        return None if cents is None else to_decimal_text(cents * MICROS_PER_CENT)

    return Column(title, show)


LINES = (
    _cents("Balance (USD)", "balance_cents"),
    _cents("  paid", "paid_balance_cents"),
    _cents("  bonus", "bonus_balance_cents"),
    _cents("Spent today", "spent_cents_today"),
    _cents("Spent in all", "spent_cents_total"),
)
app = typer.Typer(add_completion=False)


@rest_command(app, show_one(LINES))
async def balance(api: "RestApi") -> Document:
    """Show the balance and the spending of the key's account, each rounded down to whole cents."""
    return await api.get("/api/v1/me/balance", member="balance_cents")
