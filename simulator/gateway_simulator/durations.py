"""Lengths of time written as "2" or "20-60"; used by the settings and by the control rules."""

import math
from dataclasses import dataclass
from random import Random
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

LONGEST = 86_400.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A range of seconds from which each job draws its own length, uniformly."""

    low: float
    high: float

    def draw(self, source: Random) -> float:
        """Return one length in seconds."""
        return self.low if self.low == self.high else source.uniform(self.low, self.high)

    def __str__(self) -> str:
        """Return the form that `parse_spread` reads."""
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g}-{self.high:g}"


def parse_spread(value: object) -> Spread:
    """Read a number of seconds or "min-max"; raise ValueError for anything else."""
    if isinstance(value, Spread):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('must be a number of seconds or "min-max"')  # noqa: TRY004  pydantic's rule
    low, dash, high = str(value).partition("-")
    try:
        spread = Spread(float(low), float(high if dash else low))
    except ValueError:
        raise ValueError('must be a number of seconds or "min-max"') from None
    if not all(math.isfinite(bound) for bound in (spread.low, spread.high)):
        raise ValueError("must be finite")
    if not 0 <= spread.low <= spread.high <= LONGEST:
        raise ValueError(f"must rise and lie within 0 and {LONGEST:g} seconds")
    return spread


SpreadField = Annotated[
    Spread,
    BeforeValidator(parse_spread),
    PlainSerializer(str),
    WithJsonSchema({"type": "string"}),
]
"""A `Spread` as a pydantic field."""
