"""Words of messages. Pure."""


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun, e.g. `1 call` and `1,200 calls`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
