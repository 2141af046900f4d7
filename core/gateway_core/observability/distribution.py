"""Distribution of a quantity, such as a duration, as a Prometheus histogram shows it.

A histogram of the Prometheus client costs six times as much CPU for each value.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from prometheus_client.utils import floatToGoString


class Distribution:
    """Counts of values by bucket. `bounds` are the upper bounds of all buckets but the last."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float) -> None:
        """Add a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def list_buckets(self) -> list[tuple[str, float]]:
        """Return the upper bound of each bucket, and how many values are at most as large."""
        so_far, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*self._bounds, inf), self._counts, strict=True):
            so_far += count
            # as the Prometheus client writes it: "1.0", so that series go on over an upgrade
            buckets.append((floatToGoString(bound), so_far))  # type: ignore[no-untyped-call]
        return buckets
