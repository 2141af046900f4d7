"""What rows of the dashboard are made of: panels and PromQL queries."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query: JOBS stands for the processes chosen, RATE for the interval of rates."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph; `unit` is Grafana's word for it."""

    title: str
    unit: str
    text: str
    queries: tuple[Query, ...]
    stacked: bool = False


Row = tuple[str, tuple[Panel, ...]]
"""A title, and the panels below it."""


def rate(metric: str, by: str, labels: str = "") -> str:
    """A counter's increase a second, summed by those labels; `labels` is what else is selected."""
    return f"sum by ({by}) (rate({metric}{{JOBS{labels}}}[RATE]))"


def quantiles(metric: str, by: str = "", labels: str = "", legend: str = "") -> tuple[Query, ...]:
    """The median and the 99th percentile of a histogram, by those labels."""
    group = f"le, {by}" if by else "le"
    return tuple(
        Query(
            f"histogram_quantile({share},"
            f" sum by ({group}) (rate({metric}_bucket{{JOBS{labels}}}[RATE])))",
            f"p{share * 100:g} {legend}".strip(),
        )
        for share in (0.5, 0.99)
    )
