"""`gatewayctl models`: the catalog, its prices, routes and health."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import describe_health, describe_state, dollars
from gateway_cli.admin.objects import KindView
from gateway_cli.cluster.client import Cluster, on_cluster
from gateway_cli.cluster.errors import NotThere
from gateway_cli.output import Column, Document, Output, print_list, print_one
from gateway_core.api.model import GatewayModel, Price
from gateway_core.api.resource import Object
from gateway_core.billing.prices import ANY_RESOLUTION, select_price

COLUMNS = (
    Column("MODEL", "model"),
    Column("SERVICE", "service"),
    Column("ACTION", "action"),
    Column("READY", "ready"),
    Column("REASON", "reason"),
    Column("HEALTH", "health"),
    Column("ERRORS %", "error_percent", right=True),
    Column("LATENCY MS", "latency_ms", right=True),
    Column("PRICE (USD)", "price"),
)
LINES = (
    Column("Name", "name"),
    Column("Model", "model"),
    Column("Display name", "display_name"),
    Column("Path", lambda model: f"/api/v1/{model['service']}/{model['action']}"),
    Column("Price (USD)", "price"),
    Column("Routes", lambda model: [_show_route(route) for route in model["routes"]]),
    Column("Disabled", "disabled"),
    Column("Deprecated", "deprecated"),
    Column("Ready", "ready"),
    Column("Reason", "reason"),
    Column("Message", "message"),
    Column("Health", "health"),
    Column("  calls a minute", "calls_per_minute"),
    Column("  errors (%)", "error_percent"),
    Column("  latency (ms)", "latency_ms"),
    Column("  first token (ms)", "first_token_ms"),
    Column("Created", "created_at"),
)

app = typer.Typer(add_completion=False, no_args_is_help=True)


def describe_model(obj: Object) -> Document:
    """A GatewayModel, with its price of now."""
    spec = obj["spec"]
    prices = [Price.model_validate(price) for price in spec.get("prices") or ()]
    price = select_price(prices, datetime.now(UTC))
    return {
        "name": obj["metadata"]["name"],
        "model": spec["modelId"],
        "display_name": spec.get("displayName"),
        "service": spec["service"],
        "action": spec["action"],
        "disabled": spec.get("disabled", False),
        "deprecated": spec.get("deprecated", False),
        "routes": [
            {
                "name": route["name"],
                "provider": route["providerName"],
                "upstream_model": route["upstreamModel"],
                "priority": route.get("priority", 0),
                "weight": route.get("weight", 1),
            }
            for route in spec["routes"]
        ],
        "price": None if price is None else show_price(price),
        "prices": [each.model_dump(exclude_none=True) for each in prices],
        **describe_health(obj),
        **describe_state(obj),
    }


VIEW = KindView(GatewayModel, "model", describe_model, COLUMNS, LINES)


def show_price(price: Price) -> str:
    """A price for people, e.g. `0.06 a second of 720p, 0.50 a million input tokens`."""
    parts = [
        f"{dollars(each.micros)} a second"
        + ("" if each.resolution == ANY_RESOLUTION else f" of {each.resolution}")
        for each in price.per_second or ()
    ]
    units = {
        "a call": price.per_call_micros,
        "an image": price.per_image_micros,
        "a million input tokens": price.input_per_million_micros,
        "a million cached tokens": price.cached_per_million_micros,
        "a million output tokens": price.output_per_million_micros,
    }
    parts += [f"{dollars(micros)} {unit}" for unit, micros in units.items() if micros is not None]
    return ", ".join(parts)


@app.command("list")
def list_models(
    provider: Annotated[
        str | None,
        typer.Option(
            help="Only with a route to this provider.", autocompletion=opt.complete_providers
        ),
    ] = None,
    action: Annotated[str | None, typer.Option(help="Only of this action, e.g. chat.")] = None,
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """List the models of the catalog with readiness, health and price."""
    found = on_cluster(
        namespace, lambda cluster: cluster.list_all(GatewayModel, **{"spec.action": action})
    )
    documents = [
        document
        for document in map(describe_model, found)
        if provider is None or provider in {route["provider"] for route in document["routes"]}
    ]
    print_list(documents, COLUMNS, output, noun="models")


@app.command()
def describe(
    model: Annotated[
        str, typer.Argument(help="A modelId or GatewayModel.", autocompletion=opt.complete_models)
    ],
    namespace: opt.Namespace = None,
    output: Output = "table",
) -> None:
    """Show a model: its routes, price, readiness and health."""

    async def read(cluster: Cluster) -> Object:
        named = await cluster.list_all(GatewayModel, **{"spec.modelId": model})
        if named:
            return named[0]
        try:
            return await cluster.get(GatewayModel, model)
        except NotThere as error:
            known = [obj["spec"]["modelId"] for obj in await cluster.list_all(GatewayModel)]
            text = f"there is no model {model}"
            raise NotThere(f"{text}; there are {', '.join(sorted(known)[:20])}") from error

    print_one(describe_model(on_cluster(namespace, read)), LINES, output)


def _show_route(route: Document) -> str:
    text = f"{route['provider']} ({route['upstream_model']}"
    if route["priority"] or route["weight"] != 1:
        text += f", priority {route['priority']}, weight {route['weight']}"
    return text + ")"
