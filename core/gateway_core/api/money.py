"""Money: integer micro-dollars; cents and decimals only on the wire (contract §2.3, §2.4)."""

MICROS_PER_DOLLAR = 1_000_000
MICROS_PER_CENT = 10_000
MAX_MICROS = 2**53 - 1


def floor_cents(micros: int) -> int:
    """Whole cents, rounded down, for balances."""
    return micros // MICROS_PER_CENT


def ceil_cents(micros: int) -> int:
    """Whole cents, rounded up, for reservations."""
    return -(-micros // MICROS_PER_CENT)


def to_decimal_text(micros: int) -> str:
    """Dollars with 2 to 6 decimals, e.g. `0.50` or `0.000125`, for kubectl's columns."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    whole, rest = divmod(micros, MICROS_PER_DOLLAR)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"
