"""Money: integer micro-dollars inside, cents and decimals only at the edge (contract §2.3, §2.4).

Used by pricing, by the balance and task routes, and for the columns kubectl shows.
"""

MICROS_PER_DOLLAR = 1_000_000
MICROS_PER_CENT = 10_000
MAX_MICROS = 2**53 - 1


def floor_cents(micros: int) -> int:
    """Whole cents not above `micros`; what an account holds is rounded down."""
    return micros // MICROS_PER_CENT


def ceil_cents(micros: int) -> int:
    """Whole cents not below `micros`; what is reserved is rounded up."""
    return -(-micros // MICROS_PER_CENT)


def to_decimal_text(micros: int) -> str:
    """Dollars with 2 to 6 decimals, e.g. `0.50` or `0.000125`: what kubectl shows as cost."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    whole, rest = divmod(micros, MICROS_PER_DOLLAR)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"
