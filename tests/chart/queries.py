"""PromQL queries taken apart, and compared with what the processes have."""

from collections.abc import Iterator
from typing import Any

import promql_parser
from tools.metrics import list_metrics

SCRAPED = {"namespace", "service", "pod", "job", "instance"}
"""Labels that Prometheus adds to everything."""
OTHERS = {
    "up": frozenset[str](),
    "process_cpu_seconds_total": frozenset[str](),
    "process_resident_memory_bytes": frozenset[str](),
}


def known_series() -> dict[str, frozenset[str]]:
    listed = [metric for metrics in list_metrics().values() for metric in metrics]
    return OTHERS | {name: labels for metric in listed for name, labels in metric.series.items()}


def walk(expr: Any) -> Iterator[Any]:
    """An expression and all that it is made of."""
    yield expr
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        inner = getattr(expr, name, None)
        if inner is not None:
            yield from walk(inner)
    for inner in getattr(expr, "args", None) or ():
        yield from walk(inner)


def parse(query: str) -> Any:
    return promql_parser.parse(query.replace("$__rate_interval", "5m"))


def check_query(query: str) -> set[str]:
    """Every name and label in a query is known; the names."""
    known, names, labels = known_series(), set[str](), set[str]()
    for part in walk(parse(query)):
        if isinstance(part, promql_parser.VectorSelector):
            assert part.name in known, f"{part.name} in {query}"
            names.add(part.name)
            labels |= known[part.name] | SCRAPED
            for matcher in part.matchers.matchers:
                assert matcher.name in known[part.name] | SCRAPED, f"{matcher.name} in {query}"
    for part in walk(parse(query)):
        modifier = getattr(part, "modifier", None)
        # of an aggregation, or of a vector matching
        grouped = getattr(getattr(modifier, "matching", modifier), "labels", None) or ()
        assert set(grouped) <= labels, f"{grouped} in {query}"
    return names
