"""A recording of a terminal drawn as one SVG that CSS animates.

Every text that a row of the screen showed is drawn once, and shown for the times at which the row
had it. Without animation, or where the reader prefers reduced motion, the last screen is shown,
which the recorders in the registries do not offer. The picture has no scripts, fonts or other parts
from elsewhere, so that it works as an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

import pyte

FRAME_SECONDS = 0.1
"""Changes that are nearer to each other are one."""
HOLD_SECONDS = 6.0
"""For how long the last screen stays before the animation begins again."""
KEY_SECONDS = 0.09
_CELL, _LINE, _FONT = 8.4, 19, 14
_SIDE, _HEAD, _FOOT = 16, 38, 14
_COLORS = {
    "default": "",
    "black": "#484f58",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "white": "#f0f6fc",
}
"""pyte's names of the eight colors; others are hexadecimal."""
_STYLE = (
    f"text{{font:{_FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "fill:#e6edf3;white-space:pre}.b{font-weight:700}.o{visibility:hidden}"
)
_BUTTONS = "".join(
    f'<circle cx="{20 + 18 * n}" cy="19" r="5.5" fill="{color}"/>'
    for n, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
)


@dataclass(frozen=True, slots=True)
class Output:
    """What the command wrote at a time, in seconds from its start."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent characters of one look, from a column on; `color` is empty for the usual one."""

    column: int
    text: str
    color: str = ""
    is_bold: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """What a row shows from one time until another, in seconds; to the end if `until` is None."""

    row: int
    line: tuple[Run, ...]
    since: float
    until: float | None


def type_command(command: str, outputs: Sequence[Output]) -> list[Output]:
    """Return the output after a prompt at which the command is typed."""
    typed = [Output(0.0, b"$ ")]
    typed += [Output(0.6 + n * KEY_SECONDS, key.encode()) for n, key in enumerate(command)]
    begin = typed[-1].at + 0.5
    typed.append(Output(begin, b"\r\n"))
    return [*typed, *(Output(begin + output.at, output.data) for output in outputs)]


def replay(outputs: Sequence[Output], columns: int, rows: int) -> list[Shown]:
    """Return what each row showed and when, as a terminal of that size shows it."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    now: dict[int, tuple[tuple[Run, ...], float]] = {}
    history: list[Shown] = []
    for frame, group in groupby(outputs, lambda output: int(output.at / FRAME_SECONDS)):
        for output in group:
            stream.feed(output.data)
        at = frame * FRAME_SECONDS
        for row in range(rows):
            line = _read_line(screen, row)
            before, since = now.get(row, ((), 0.0))
            if line != before:
                if before:
                    history.append(Shown(row, before, since, at))
                now[row] = line, at
    history += [Shown(row, line, since, None) for row, (line, since) in now.items() if line]
    return sorted(history, key=lambda shown: (shown.since, shown.row))


def _read_line(screen: pyte.Screen, row: int) -> tuple[Run, ...]:
    cells = [screen.buffer[row][column] for column in range(screen.columns)]
    runs, column = [], 0
    for (color, is_bold), group in groupby(cells, lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in group)
        if text.strip():
            start = column + len(text) - len(text.lstrip())
            runs.append(Run(start, text.strip(), _COLORS.get(color, f"#{color}"), is_bold))
        column += len(text)
    return tuple(runs)


def draw_recording(title: str, history: Sequence[Shown], columns: int) -> str:
    """Return the SVG of the recording, in a window that is as high as the longest screen."""
    total = max(shown.since for shown in history) + HOLD_SECONDS
    width = columns * _CELL + 2 * _SIDE
    height = (max(shown.row for shown in history) + 1) * _LINE + _HEAD + _FOOT
    moves = "".join(_describe_moves(number, shown, total) for number, shown in enumerate(history))
    hidden = ' class="o"'
    texts = "".join(
        f'<g id="s{number}"{"" if shown.until is None else hidden}>'
        f"{''.join(_draw_run(run, shown.row) for run in shown.line)}</g>"
        for number, shown in enumerate(history)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        f' width="{width:g}" height="{height:g}" role="img" aria-label={quoteattr(title)}>'
        f"<title>{escape(title)}</title>"
        f"<style>{_STYLE}@media(prefers-reduced-motion:no-preference){{{moves}}}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#0d1117"/>{_BUTTONS}'
        f'<text x="{width / 2:g}" y="24" style="fill:#8b949e" text-anchor="middle">'
        f"{escape(title)}</text>{texts}</svg>\n"
    )


def _draw_run(run: Run, row: int) -> str:
    # the length makes columns line up in whatever font the reader has
    length = f' textLength="{len(run.text) * _CELL:g}"' if len(run.text) > 1 else ""
    color = f' style="fill:{run.color}"' if run.color else ""
    bold = ' class="b"' if run.is_bold else ""
    x, y = _SIDE + run.column * _CELL, _HEAD + row * _LINE + _FONT
    return f'<text x="{x:g}" y="{y:g}"{length}{color}{bold}>{escape(run.text)}</text>'


def _describe_moves(number: int, shown: Shown, total: float) -> str:
    if shown.since == 0 and shown.until is None:
        return ""
    steps = f"0%{{visibility:{'hidden' if shown.since else 'visible'}}}"
    if shown.since:
        steps += f"{shown.since / total:.2%}{{visibility:visible}}"
    if shown.until is not None:
        steps += f"{shown.until / total:.2%}{{visibility:hidden}}"
    else:
        steps += "to{visibility:visible}"
    motion = f"k{number} {total:g}s step-end infinite"
    return f"#s{number}{{animation:{motion}}}@keyframes k{number}{{{steps}}}"
