"""W3C Trace Context: what is a context, and what is none."""

import pytest

from gateway_core.observability.tracing import TraceContext, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_written_traceparent_is_read_back() -> None:
    for sampled in (True, False):
        context = TraceContext(TRACE, SPAN, sampled)
        assert parse_traceparent(str(context)) == context


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-03",
        f"01-{TRACE}-{SPAN}-01-what a later version has",
    ],
)
def test_flags_and_later_versions_are_read(text: str) -> None:
    assert parse_traceparent(text) == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "sk-abc",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_invalid_traceparent_is_none(text: str | None) -> None:
    assert parse_traceparent(text) is None
