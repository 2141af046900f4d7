"""Plots as inline SVG, drawn here: bars by day. Pure. Colors come from the style sheet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 720, 200
_LEFT, _TOP, _BOTTOM = 64, 12, 24
_STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Bar:
    """A value by its label; `part` of it is drawn in the color of failures."""

    label: str
    value: int
    part: int = 0


def draw_bars(title: str, bars: Sequence[Bar], show: Callable[[int], str]) -> Markup:
    """Bars from left to right under a scale that ends at a round figure."""
    top = _round_up(max((bar.value for bar in bars), default=0))
    room, depth = WIDTH - _LEFT, HEIGHT - _TOP - _BOTTOM
    step = room / max(1, len(bars))
    pieces = [Markup('<svg class="plot" viewBox="0 0 {} {}" role="img">').format(WIDTH, HEIGHT)]
    pieces.append(Markup("<title>{}</title>").format(title))
    for share in (0, 0.5, 1):
        y = _TOP + depth * (1 - share)
        pieces.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="scale" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(_LEFT, WIDTH, y, y, _LEFT - 8, y + 4, show(round(top * share)))
        )
    every = max(1, -(-len(bars) // 6))
    for index, bar in enumerate(bars):
        x = _LEFT + index * step
        for value, kind in ((bar.value, "whole"), (bar.part, "part")):
            tall = depth * value / top
            if value:
                pieces.append(
                    Markup(
                        '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
                        "<title>{}</title></rect>"
                    ).format(
                        kind,
                        x + step * 0.15,
                        _TOP + depth - max(tall, 1),
                        step * 0.7,
                        max(tall, 1),
                        f"{bar.label}: {show(value)}",
                    )
                )
        if index % every == 0:
            pieces.append(
                Markup('<text class="scale" x="{:.1f}" y="{}">{}</text>').format(
                    x, HEIGHT - 6, bar.label[5:] or bar.label
                )
            )
    return Markup("").join([*pieces, Markup("</svg>")])


def _round_up(value: int) -> int:
    """The next of 1, 2, 5, 10, 20, …"""
    size = 1
    while size * 10 < value:
        size *= 10
    return next(size * step for step in _STEPS if size * step >= value)
