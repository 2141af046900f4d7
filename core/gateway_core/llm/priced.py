"""A call with its price, and the further models that its client allows."""

from dataclasses import dataclass

from gateway_core.api.price import Price
from gateway_core.llm.formats.calls import LlmCall
from gateway_core.providers.catalog import Model


# not frozen, as OpenCall: a frozen instance takes three times as long to create
@dataclass(slots=True)
class PricedCall:
    """A valid call of a model, with the most tokens that it can use and cost (micro-dollars)."""

    call: LlmCall
    model: Model
    price: Price
    input_bound: int
    output_bound: int
    micros: int
    is_large: bool = False
    """Return whether its body takes long to translate and to encode."""
    attempts: "Attempts | None" = None
    """None where the client leaves it at one model and the gateway's times."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Further models of a call, in order, what is reserved for all, and the client's times.

    `micros` are micro-dollars. `first_byte_seconds` is for each model, `total_seconds` for the
    whole call.
    """

    fallbacks: tuple[PricedCall, ...]
    micros: int
    total_seconds: float | None = None
    first_byte_seconds: float | None = None
