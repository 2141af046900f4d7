"""Price list of all models at one moment (contract §2.6); amounts are micro-dollars.

It includes models that are not callable: clients read here that a configured model is withdrawn,
or has no provider that is ready.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway_core.api.model import FieldRule
from gateway_core.api.price import Price
from gateway_core.billing.prices import (
    Unit,
    find_second_price,
    list_units,
    select_price,
)
from gateway_core.billing.token_prices import list_tiers
from gateway_core.providers.catalog import Catalog, list_resolutions
from gateway_core.tasks.operations import OPERATIONS

PricingStatus = Literal["priced", "free", "unpriced"]
CatalogStatus = Literal["available", "deprecated", "unavailable"]
Strategy = Literal[
    "per_call", "per_second", "per_second_by_resolution", "per_image", "per_token", "combined"
]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Price of one model. `seconds` are rates by resolution, in the operation's order.

    `unit` is None without a price, or with a price of several units.
    """

    service: str
    action: str
    model_id: str
    catalog_status: CatalogStatus
    price: Price | None
    seconds: tuple[tuple[str, int], ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units of the price."""
        return () if self.price is None else list_units(self.price)

    @property
    def unit(self) -> Unit | None:
        """The unit of the price, where there is one."""
        return self.units[0] if len(self.units) == 1 else None

    @property
    def unit_micros(self) -> int | None:
        """The price of a unit, where there is one."""
        if self.price is None or self.unit is None:
            return None
        rates = {rate for _, rate in self.seconds}
        return {
            Unit.CALL: self.price.per_call_micros,
            Unit.SECOND: rates.pop() if len(rates) == 1 else None,
            Unit.IMAGE: self.price.per_image_micros,
            Unit.TOKEN: None,
        }[self.unit]

    @property
    def strategy(self) -> Strategy | None:
        """Calculation of a call's price."""
        if self.unit is None:
            return "combined" if self.units else None
        if self.unit is Unit.SECOND and self.unit_micros is None:
            return "per_second_by_resolution"
        strategies: Mapping[Unit, Strategy] = {
            Unit.CALL: "per_call",
            Unit.SECOND: "per_second",
            Unit.IMAGE: "per_image",
            Unit.TOKEN: "per_token",
        }
        return strategies[self.unit]

    @property
    def pricing_status(self) -> PricingStatus:
        """Whether calls cost anything."""
        if self.price is None:
            return "unpriced"
        return "free" if is_free(self.price) else "priced"


def is_free(price: Price) -> bool:
    """Return whether all units of a call are free."""
    rates = [rate.micros for rate in price.per_second or ()]
    amounts = (
        price.per_call_micros,
        price.per_image_micros,
        *rates,
        *(rate for _, tier in list_tiers(price) for rate in tier),
    )
    return not any(amounts)


def list_schedules(catalog: Catalog, at: datetime) -> list[Schedule]:
    """Return all entries as of `at`, sorted by service, action and id."""
    entries = [*_list_callable(catalog, at), *_list_withdrawn(catalog, at)]
    return sorted(entries, key=lambda entry: (entry.service, entry.action, entry.model_id))


def _list_callable(catalog: Catalog, at: datetime) -> Iterator[Schedule]:
    for (service, action), models in catalog.models.items():
        for model in models.values():
            status: CatalogStatus = "deprecated" if model.deprecated else "available"
            if model.ready is False:
                status = "unavailable"
            price = select_price(model.prices, at)
            seconds = _list_seconds(action, model.rules, price)
            yield Schedule(service, action, model.model_id, status, price, seconds)


def _list_withdrawn(catalog: Catalog, at: datetime) -> Iterator[Schedule]:
    for obj in catalog.withdrawn:
        spec = obj.spec
        price = select_price(spec.prices or (), at)
        rules = {rule.name: rule for rule in spec.fields or ()}
        seconds = _list_seconds(spec.action, rules, price)
        yield Schedule(spec.service, spec.action, spec.model_id, "unavailable", price, seconds)


def _list_seconds(
    action: str, rules: Mapping[str, FieldRule], price: Price | None
) -> tuple[tuple[str, int], ...]:
    if price is None or not price.per_second:
        return ()
    operation = OPERATIONS.get(action)
    names: Iterable[str] = (
        list_resolutions(operation, rules)
        if operation
        else sorted(rate.resolution for rate in price.per_second)
    )
    found = ((name, find_second_price(price, name)) for name in names)
    return tuple((name, micros) for name, micros in found if micros is not None)
