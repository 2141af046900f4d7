"""Plots as inline SVG, drawn here: bars by day. Pure. Colors come from the style sheet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 720, 200
_LEFT, _TOP, _BOTTOM = 64, 12, 24
_STEPS = (1, 2, 5, 10)
# plain strings: the `%` of Markup wraps each figure, which takes six times as long
_HEAD = '<svg class="plot" viewBox="0 0 %d %d" role="img"><title>%s</title>'
_LINE = (
    '<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>'
    '<text class="scale" x="%d" y="%.1f" text-anchor="end">%s</text>'
)
_BAR = '<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>'
_LABEL = '<text class="scale" x="%.1f" y="%d">%s</text>'


@dataclass(frozen=True, slots=True)
class Bar:
    """A value by its label; `part` of it is drawn in the color of failures."""

    label: str
    value: int
    part: int = 0


def draw_bars(title: str, bars: Sequence[Bar], show: Callable[[int], str]) -> Markup:
    """Bars from left to right under a scale that ends at a round figure.

    The scale has no middle where that is no whole number, and no top where nothing is drawn.
    """
    most = max((bar.value for bar in bars), default=0)
    top = _round_up(most)
    shares = (0, 0.5, 1) if top % 2 == 0 else (0, 1)
    room, depth = WIDTH - _LEFT, HEIGHT - _TOP - _BOTTOM
    step = room / max(1, len(bars))
    pieces = [_HEAD % (WIDTH, HEIGHT, escape(title))]
    for share in shares if most else (0,):
        y = _TOP + depth * (1 - share)
        scale = escape(show(round(top * share)))
        pieces.append(_LINE % (_LEFT, WIDTH, y, y, _LEFT - 8, y + 4, scale))
    every = max(1, -(-len(bars) // 6))
    for index, bar in enumerate(bars):
        x = _LEFT + index * step
        for value, kind in ((bar.value, "whole"), (bar.part, "part")):
            if value:
                tall = max(depth * value / top, 1)
                place = x + step * 0.15, _TOP + depth - tall, step * 0.7, tall
                pieces.append(_BAR % (kind, *place, escape(f"{bar.label}: {show(value)}")))
        if index % every == 0:
            pieces.append(_LABEL % (x, HEIGHT - 6, escape(bar.label[5:] or bar.label)))
    return Markup("".join([*pieces, "</svg>"]))  # noqa: S704 - texts are escaped above


def _round_up(value: int) -> int:
    """Return the next of 1, 2, 5, 10, 20, …"""
    size = 1
    while size * 10 < value:
        size *= 10
    return next(size * step for step in _STEPS if size * step >= value)
