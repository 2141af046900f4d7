"""Parts of pages as HTML: texts are escaped, and no page waits for its template."""

import re
from typing import Any

import jinja2
import pytest

from gateway_apiserver.surfaces.console.parts import Cell, Head, Region, Table, number, state
from gateway_apiserver.surfaces.console.plots import Bar, draw_bars
from gateway_apiserver.surfaces.pages.html import Pages

HOSTILE = '"><script>alert(1)</script>&'
ESCAPED = "&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;"


def fill(table: Table) -> str:
    return Pages("https://gateway.example").fill("console/inner.html", region=Region([table]))


def test_table_escapes_texts_of_every_kind_of_cell() -> None:
    row = [
        Cell(HOSTILE),
        Cell(HOSTILE, "code"),
        Cell(HOSTILE, href=f"/{HOSTILE}"),
        state(HOSTILE),
        number(HOSTILE, 0.5),
    ]
    page = fill(Table(HOSTILE, [Head(HOSTILE)] * len(row), [row, row], "empty"))
    assert "<script" not in page
    # each row: five columns by their names, five cells and an address
    assert page.count(ESCAPED) == 2 * 11 + 5 + 1


def test_table_shows_each_cell_under_the_name_of_its_column() -> None:
    page = fill(
        Table("Keys", [Head("Name"), Head("Used", "number")], [[Cell("a"), number("1")]], "")
    )
    for kind, column, text in (("text", "Name", "a"), ("number", "Used", "1")):
        head = f'<span class="head" aria-hidden="true">{column}</span>'
        value = f'<span class="value"><bdi>{text}</bdi></span>'
        assert f'<td role="cell" class="{kind}">{head}{value}</td>' in page


def test_plot_escapes_its_texts() -> None:
    drawing = draw_bars(HOSTILE, [Bar(HOSTILE, 2, 1)], lambda value: f"{value}{HOSTILE}")
    assert "<script" not in drawing
    # the title, three figures of the scale, two parts of the bar with two texts each, its label
    assert drawing.count("&lt;/script&gt;") == 1 + 3 + 2 * 2 + 1


@pytest.mark.parametrize(
    ("value", "scale"),
    [(0, ["0"]), (1, ["0", "1"]), (2, ["0", "1", "2"]), (5, ["0", "5"]), (9, ["0", "5", "10"])],
)
def test_scale_of_a_plot_has_exact_figures(value: int, scale: list[str]) -> None:
    drawing = draw_bars("Calls", [Bar("2026-11-27", value)], str)
    assert re.findall(r'text-anchor="end">(\d+)<', drawing) == scale


def test_no_page_compiles_its_template(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages("https://gateway.example")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a page compiles its template")

    monkeypatch.setattr(jinja2.Environment, "compile", refuse)
    assert "empty" in pages.fill(
        "console/inner.html", region=Region([Table("Keys", [], [], "empty")])
    )
