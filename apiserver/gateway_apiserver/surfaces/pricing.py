"""Price list and quotes: `/api/v1/price_schedules`, `/api/v1/price_quotes` (contract §2.6, §2.7).

Neither counts in the rate. Both may be read without a key if the deployment allows it; a credential
that is sent must be valid all the same. Prices are in micro-dollars, which is what is charged, and
in whole cents, rounded up. A price below a cent has no cents: 1 for a hundredth of a cent would be
read as a hundred times the price.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Docs, Schema
from gateway_apiserver.surfaces.models import Query
from gateway_apiserver.surfaces.moderations import describe_body as describe_moderation
from gateway_apiserver.surfaces.operations import PublicSender
from gateway_apiserver.surfaces.quotes import Quote, QuoteRequest, quote_call
from gateway_apiserver.surfaces.validation import read_query
from gateway_core.admission.admission import Access
from gateway_core.api.money import ceil_cents
from gateway_core.api.times import format_time
from gateway_core.billing.prices import floor_moment
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.kube.clock import CLOCK
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.providers.price_list import (
    PricingStatus,
    Schedule,
    list_schedules,
)
from gateway_core.providers.price_schedules import PriceSchedule, render_schedule
from gateway_core.providers.suggestions import SCHEDULES_PATH
from gateway_core.tasks.operations import CHAT, OPERATIONS
from gateway_core.tasks.schemas import close_schema, describe_body
from gateway_web.responses import JSON, NO_STORE

_ARRAY = {"type": "array", "minItems": 1}
_PARTS = {"type": "array", "items": {"type": "object"}}
_CONTENT = {"type": "object", "properties": {"parts": _PARTS}}
_NO_MESSAGES = {"not": {"required": ["messages"]}}
_LLM_PARAMS: Schema = {
    "type": "object",
    "description": "The body of a chat completion, of generateContent, or of a response.",
    "anyOf": [
        {"required": ["messages"], "properties": {"messages": _ARRAY}},
        {
            "required": ["contents"],
            "properties": {"contents": {**_ARRAY, "items": _CONTENT}},
            "allOf": [_NO_MESSAGES],
        },
        {
            "required": ["input"],
            "properties": {"input": {"anyOf": [{"type": "string"}, _ARRAY]}},
            "allOf": [_NO_MESSAGES, {"not": {"required": ["contents"]}}],
        },
    ],
}

_Shown = tuple[Schedule, bytes]
"""An entry of the price list, and its JSON."""


class PriceQuery(Query):
    """Which prices; an empty value filters nothing."""

    service: Annotated[str, Field(description="Shows only the prices of this service.")] = ""
    action: Annotated[str, Field(description="Shows only the prices of this action.")] = ""
    model: Annotated[str, Field(description="Shows only the prices of this model.")] = ""


class PriceList(BaseModel):
    """The response of the price list."""

    as_of: str
    price_schedules: list[PriceSchedule]


class PriceQuote(BaseModel):
    """What one call reserves."""

    service: str
    action: str
    model: str | None
    pricing_status: PricingStatus
    currency: Literal["USD"]
    reservation_amount_cents: int = Field(description="Rounded up to whole cents.")
    estimate_basis: Literal["exact", "maximum", "default_params"]
    as_of: str


class QuoteAnswer(BaseModel):
    """The response with a quote."""

    price_quote: PriceQuote


class Prices:
    """The price list and quotes. `clock` gives the time now."""

    def __init__(
        self,
        catalog: CatalogView,
        addresses: AddressPolicy,
        sender: PublicSender,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._catalog = catalog
        self._addresses = addresses
        self._sender = sender
        self._clock = clock
        self._listed: tuple[Catalog, datetime] | None = None
        self._shown = list[_Shown]()

    def list_routes(self) -> list[BaseRoute]:
        """Return the route of the list, which is sent in pieces."""
        title = "List the prices of all models"
        docs = Docs("listPrices", title, PriceList, query=PriceQuery)
        access = Access(anonymous=True)
        return [
            CallRoute("GET", SCHEDULES_PATH, self.show_schedules, "price_schedules", access, docs)
        ]

    def describe_quote(self, catalog: Catalog) -> Schema:
        """Return the body of a request for a quote: one form for each path that is served."""
        forms = []
        loopback = self._addresses.permits("127.0.0.1")
        for (service, action), models in sorted(catalog.models.items()):
            if OPERATIONS[action].makes_tasks:
                params = describe_body(OPERATIONS[action], models, loopback_callbacks=loopback)
                params["required"] = [name for name in params["required"] if name != "model"]
                params["properties"]["model"] |= {
                    "type": ["string", "null"],
                    "enum": [*models, None],
                }
            elif action == CHAT.action:
                params = {"properties": {"model": {"enum": [*models, None]}}, **_LLM_PARAMS}
            else:
                # the body of another dialect, which has more that is ignored
                params = describe_moderation(models)
            forms.append(_describe_form(service, action, models, params))
        return {"oneOf": forms} if forms else {"type": "object"}

    async def show_schedules(self, call: Call) -> None:
        """The price list, or the part of it that the query names."""
        query = read_query(PriceQuery, call.scope)
        moment = floor_moment(self._clock())
        shown = [
            rendered
            for entry, rendered in self._list(moment)
            if (query.service or entry.service) == entry.service
            and (query.action or entry.action) == entry.action
            and (query.model or entry.model_id) == entry.model_id
        ]
        # entries stay apart, so that slow readers of different seconds share their bytes
        body = [b'{"as_of":"%s","price_schedules":[' % format_time(moment).encode()]
        for number, entry in enumerate(shown):
            body += (b",", entry) if number else (entry,)
        body.append(b"]}")
        # prices are as of now, so no cache may keep them
        await self._sender.send(call, body, (JSON, NO_STORE))

    def quote(self, asked: QuoteRequest) -> QuoteAnswer:
        """Return the reservation of a call if it were made now. Raises as `quote_call`."""
        moment = floor_moment(self._clock())
        quote = quote_call(self._catalog.current, asked, self._addresses, moment)
        return QuoteAnswer(price_quote=_render_quote(quote, moment))

    def _list(self, moment: datetime) -> list[_Shown]:
        """Return the whole list of this second.

        An entry is rendered again only if it has changed.
        """
        catalog = self._catalog.current
        if self._listed is None or self._listed[0] is not catalog or self._listed[1] != moment:
            before = {_name(entry): (entry, raw) for entry, raw in self._shown}
            self._shown = [
                known
                if (known := before.get(_name(entry))) is not None and known[0] == entry
                else (entry, render_schedule(entry).model_dump_json().encode())
                for entry in list_schedules(catalog, moment)
            ]
            self._listed = catalog, moment
        return self._shown


def _describe_form(
    service: str, action: str, models: Mapping[str, Model], params: Schema
) -> Schema:
    return close_schema(
        {
            "service": {"type": "string", "const": service},
            "action": {"type": "string", "const": action},
            "model": {"type": ["string", "null"], "enum": [*models, None]},
            "params": {
                "anyOf": [{"type": "null"}, {"type": "object", "maxProperties": 0}, params],
                "description": "The body of the call, with or without its model.",
            },
        },
        optional=("model", "params"),
    )


def _name(entry: Schedule) -> tuple[str, str, str]:
    return entry.service, entry.action, entry.model_id


def _render_quote(quote: Quote, moment: datetime) -> PriceQuote:
    return PriceQuote(
        service=quote.service,
        action=quote.action,
        model=quote.model_id,
        pricing_status="free" if quote.free else "priced",
        currency="USD",
        reservation_amount_cents=ceil_cents(quote.micros),
        estimate_basis=quote.basis,
        as_of=format_time(moment),
    )
