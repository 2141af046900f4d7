"""Time series as SVG: axes with round figures, lines or stacked areas, a legend. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.sax.saxutils import escape

COLORS = (
    "#5a9e3d",
    "#d9a514",
    "#3f8fc7",
    "#dd6b20",
    "#cc3b3b",
    "#2a66b0",
    "#a3529e",
    "#6b4fa0",
    "#2f7d68",
    "#b8863b",
    "#7a8b99",
    "#e08fb0",
)
_LEFT, _RIGHT, _TOP, _AXIS, _ROW = 70, 12, 34, 20, 15
_SIGN = 6.3
"""How wide a character of the legend is about."""
_MOST_LEGEND_ROWS = 3
_STEPS = (1, 2, 2.5, 5, 10)
_TIME_STEPS = (15, 30, 60, 120, 300, 600, 900, 1800, 3600)
_SCALES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "s": ((120, 60, " min"), (1, 1, " s"), (1e-3, 1e-3, " ms"), (0, 1e-6, " µs")),
    "bytes": ((2**30, 2**30, " GiB"), (2**20, 2**20, " MiB"), (2**10, 2**10, " KiB"), (0, 1, " B")),
    "Bps": ((1e9, 1e9, " GB/s"), (1e6, 1e6, " MB/s"), (1e3, 1e3, " kB/s"), (0, 1, " B/s")),
    "reqps": ((1e3, 1e3, "K req/s"), (0, 1, " req/s")),
    "ops": ((1e3, 1e3, "K ops/s"), (0, 1, " ops/s")),
    "percentunit": ((0, 0.01, " %"),),
    "short": ((1e6, 1e6, " M"), (1e3, 1e3, " K"), (0, 1, "")),
}
"""Grafana's units: from which value on each word is used, and what it is worth."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A name for the legend, and values by time (Unix seconds)."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a plot is, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Span:
    """The times that a plot shows, and the seconds between two values."""

    start: float
    end: float
    step: float


def draw_plot(
    title: str, unit: str, curves: Sequence[Curve], is_stacked: bool, place: Place, span: Span
) -> str:
    """A panel with its title, plot and legend; without values it says so."""
    head = (
        f'<g transform="translate({place.x:g} {place.y:g})">'
        f'<rect class="panel" width="{place.width:g}" height="{place.height:g}" rx="3"/>'
        f'<text class="title" x="10" y="20">{escape(title)}</text>'
    )
    shown = [curve for curve in curves if curve.points]
    if not shown:
        middle = place.width / 2, place.height / 2 + 6
        none = f'<text class="none" x="{middle[0]:g}" y="{middle[1]:g}">No data</text>'
        return f"{head}{none}</g>"
    legend, rows = _draw_legend(shown, place)
    depth = place.height - _TOP - _AXIS - rows * _ROW - 8
    levels = stack(shown) if is_stacked else [list(curve.points) for curve in shown]
    top = max(value for points in levels for _, value in points)
    ticks = choose_ticks(top, unit)
    room = place.width - _LEFT - _RIGHT

    def locate(at: float, value: float) -> tuple[float, float]:
        x = _LEFT + room * (at - span.start) / (span.end - span.start)
        return round(x, 1), round(_TOP + depth * (1 - value / ticks[-1]), 1)

    pieces = [head, _draw_values(ticks, unit, place, depth), _draw_times(span, place, depth)]
    floor = [(at, 0.0) for at, _ in levels[0]]
    for index, points in enumerate(levels):
        color = COLORS[index % len(COLORS)]
        for part in split_gaps(points, span.step):
            line = _join(thin([locate(*point) for point in part]))
            if is_stacked:
                below = dict(levels[index - 1] if index else floor)
                back = _join(thin([locate(at, below.get(at, 0.0)) for at, _ in reversed(part)]))
                pieces.append(f'<path fill="{color}" fill-opacity=".25" d="M{line}L{back}Z"/>')
            pieces.append(f'<path class="line" stroke="{color}" d="M{line}"/>')
    return "".join([*pieces, legend, "</g>"])


def stack(curves: Sequence[Curve]) -> list[list[tuple[float, float]]]:
    """For each curve the sums with all before it; where a curve has no value, it adds nothing."""
    times = sorted({at for curve in curves for at, _ in curve.points})
    sums = dict.fromkeys(times, 0.0)
    levels = []
    for curve in curves:
        for at, value in curve.points:
            sums[at] += value
        levels.append([(at, sums[at]) for at in times])
    return levels


def split_gaps(
    points: Sequence[tuple[float, float]], step: float
) -> list[list[tuple[float, float]]]:
    """The points in parts without a gap: between two values of a part there is one step."""
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if parts and point[0] - parts[-1][-1][0] <= step * 1.5:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a line without those within a level stretch."""
    return [
        point
        for index, point in enumerate(points)
        if not 0 < index < len(points) - 1
        or not points[index - 1][1] == point[1] == points[index + 1][1]
    ]


def choose_ticks(top: float, unit: str) -> list[float]:
    """Round figures from 0 to at least `top`, in the unit in which it is shown."""
    if top <= 0:
        return [0.0, 1.0]
    scale = _choose_scale(top, unit)[0]
    wanted = top / scale / 4
    size = 10 ** math.floor(math.log10(wanted))
    step = next(size * each for each in _STEPS if size * each >= wanted * (1 - 1e-9))
    return [step * scale * count for count in range(math.ceil(top / scale / step - 1e-9) + 1)]


def show_value(value: float, unit: str, largest: float) -> str:
    """A value in the unit that suits `largest`, the largest of its axis."""
    scale, word = _choose_scale(largest, unit)
    return f"{value / scale:.3g}{word}" if value else f"0{word}"


def _choose_scale(value: float, unit: str) -> tuple[float, str]:
    return next((worth, word) for least, worth, word in _SCALES[unit] if value >= least)


def _draw_values(ticks: Sequence[float], unit: str, place: Place, depth: float) -> str:
    pieces = []
    for tick in ticks:
        y = _TOP + depth * (1 - tick / ticks[-1])
        text = show_value(tick, unit, ticks[-1])
        pieces.append(
            f'<path class="grid" d="M{_LEFT} {y:.1f}H{place.width - _RIGHT:g}"/>'
            f'<text class="value" x="{_LEFT - 6}" y="{y + 4:.1f}">{escape(text)}</text>'
        )
    return "".join(pieces)


def _draw_times(span: Span, place: Place, depth: float) -> str:
    room = place.width - _LEFT - _RIGHT
    length = span.end - span.start
    step = next((each for each in _TIME_STEPS if length / each <= 6), _TIME_STEPS[-1])
    pieces = []
    at = math.ceil(span.start / step) * step
    while at <= span.end:
        x = _LEFT + room * (at - span.start) / length
        text = f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}".removesuffix(":00")
        pieces.append(
            f'<path class="grid" d="M{x:.1f} {_TOP}V{_TOP + depth:g}"/>'
            f'<text class="time" x="{x:.1f}" y="{_TOP + depth + 15:g}">{text}</text>'
        )
        at += step
    return "".join(pieces)


def _draw_legend(curves: Sequence[Curve], place: Place) -> tuple[str, int]:
    """The legend and its rows; names that find no room are counted."""
    pieces, x, row = [], 10.0, 0
    for index, curve in enumerate(curves):
        width = 26 + len(curve.name) * _SIGN
        if x > 10 and x + width > place.width - 60:
            if row + 1 == _MOST_LEGEND_ROWS:
                more = len(curves) - index
                pieces.append((x, row, f"+ {more} more", ""))
                break
            x, row = 10.0, row + 1
        pieces.append((x, row, curve.name, COLORS[index % len(COLORS)]))
        x += width
    top = place.height - (row + 1) * _ROW - 4
    text = ""
    for left, line, name, color in pieces:
        y = top + line * _ROW
        mark = f'<rect fill="{color}" x="{left:g}" y="{y + 6:g}" width="10" height="3"/>'
        shown = escape(shorten(name, place.width - left - 20))
        text += f'{mark if color else ""}<text x="{left + 14:g}" y="{y + 11:g}">{shown}</text>'
    return text, row + 1


def shorten(name: str, width: float) -> str:
    """A name that fits into that many pixels."""
    most = int(width / _SIGN)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _join(points: Iterable[tuple[float, float]]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in points)
