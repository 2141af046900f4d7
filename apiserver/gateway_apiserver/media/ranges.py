"""Byte ranges of RFC 9110 §14: which part of an object a request asks for. Pure."""

import re
from dataclasses import dataclass

_SINGLE = re.compile(r"bytes=\s*(\d{0,19})-(\d{0,19})\s*", re.IGNORECASE)


class RangeNotSatisfiable(Exception):
    """The range lies beyond the object's end."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` to `end`, both inclusive."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How many bytes."""
        return self.end - self.start + 1


def read_range(header: str | None, size: int) -> ByteRange | None:
    """The single range asked for; None where the whole object is to be sent.

    A header that is malformed, of another unit or of several ranges is ignored. Raises
    RangeNotSatisfiable.
    """
    match = _SINGLE.fullmatch(header) if header else None
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        wanted = int(match[2])
        if wanted == 0 or size == 0:
            raise RangeNotSatisfiable
        return ByteRange(max(0, size - wanted), size - 1)
    start = int(match[1])
    end = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < start:
        return None
    if start >= size:
        raise RangeNotSatisfiable
    return ByteRange(start, end)
