"""Traces as they are named between processes: the header `traceparent` of W3C Trace Context."""

import re
from dataclasses import dataclass

_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span in a trace, both in hex, and whether its spans are recorded."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def parse_traceparent(text: str | None) -> TraceContext | None:
    """The context in a header or annotation; None for none, and for whatever is not well formed.

    A later version may have more behind what this one knows.
    """
    match = _SHAPE.fullmatch(text or "")
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    if set(match[2]) == {"0"} or set(match[3]) == {"0"}:
        return None
    return TraceContext(match[2], match[3], bool(int(match[4], 16) & _SAMPLED))
