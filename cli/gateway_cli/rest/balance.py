"""`gatewayctl balance`: the money of the account that a key belongs to."""

import typer

from gateway_cli import options as opt
from gateway_cli.output import Column, Output, print_one
from gateway_cli.rest.access import make_access, on_api
from gateway_core.api.money import MICROS_PER_CENT, to_decimal_text

app = typer.Typer(add_completion=False)

FIELDS = {
    "balance_cents": "Balance (USD)",
    "paid_balance_cents": "  paid",
    "bonus_balance_cents": "  bonus",
    "spent_cents_today": "Spent today",
    "spent_cents_total": "Spent in all",
}
LINES = tuple(
    Column(title, lambda found, field=field: show_cents(found.get(field)))  # type: ignore[misc]
    for field, title in FIELDS.items()
)


def show_cents(cents: int | None) -> str | None:
    """Dollars as text; None stays."""
    return None if cents is None else to_decimal_text(cents * MICROS_PER_CENT)


@app.command()
def balance(base_url: opt.BaseUrl, key_file: opt.KeyFile = None, output: Output = "table") -> None:
    """Show the balance and the spending of the key's account."""
    access = make_access(base_url, key_file)
    path = "/api/v1/me/balance"
    print_one(on_api(access, lambda api: api.get(path, member="balance_cents")), LINES, output)
