"""Pictures of the documents: what may be in them, and how they are made."""

import re
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tools.pictures.demo import draw_terminal
from tools.pictures.studio import describe_days

from gateway_core.api.usage import UsageStatus

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "pictures"
SHOWN = {
    "README.md": {
        "demo.svg",
        "console-overview.png",
        "console-task.png",
        "console-playground.png",
    },
    "docs/observing.md": {"dashboard.svg"},
}
"""Documents and the pictures that each shows."""
MOST_BYTES = {"dashboard.svg": 600_000, ".svg": 300_000, ".png": 250_000}
DAYS_BEFORE = [*((10, day) for day in range(26, 32)), *((11, day) for day in range(1, 24))]
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
SVG = "{http://www.w3.org/2000/svg}"
FORBIDDEN = {"script", "foreignObject", "image", "a"}


@pytest.mark.parametrize("document", SHOWN)
def test_document_shows_its_pictures_with_texts_for_those_who_do_not_see_them(document):
    path = ROOT / document
    found = {
        (path.parent / target).resolve(): " ".join(text.split())
        for text, target in IMAGE.findall(path.read_text())
    }
    assert {FOLDER / name for name in SHOWN[document]} == set(found)
    assert all(len(text) > 40 for text in found.values())


def test_every_picture_is_shown_and_small():
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(sizes) == set().union(*SHOWN.values())
    most = {name: MOST_BYTES.get(name) or MOST_BYTES[Path(name).suffix] for name in sizes}
    assert {name: size for name, size in sizes.items() if size > most[name]} == {}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.name)
def test_svg_has_no_script_and_loads_nothing(path):
    """Code hosts show it as an image, which runs and loads nothing."""
    text = path.read_text()
    root = ElementTree.fromstring(text)
    assert {element.tag.removeprefix(SVG) for element in root.iter()}.isdisjoint(FORBIDDEN)
    for element in root.iter():
        names = {name.rpartition("}")[2] for name in element.attrib}
        assert not names & {"href", "src"}
        assert not [name for name in names if name.startswith("on")]
    # a clip names a part of the picture itself
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    assert not [
        value for element in root.iter() for value in element.attrib.values() if "//" in value
    ]


def test_past_days_of_the_console_are_the_same_each_time_and_fit_the_schema():
    now = datetime(2026, 11, 24, 9, tzinfo=UTC)
    days = dict(describe_days(now))
    assert days == dict(describe_days(now))
    assert list(days) == [f"2026-{m:02}-{d:02}" for m, d in DAYS_BEFORE]
    for status in days.values():
        usage = UsageStatus.model_validate(status)
        assert usage.charged_micros > 1_000_000
        assert usage.requests > usage.failed
        assert {row.model_id for row in usage.rows} >= {"aurora-video", "quill-small"}
        assert sum(row.charged_micros for row in usage.rows) == usage.charged_micros


def test_terminal_shows_each_line_as_it_is():
    svg = draw_terminal("go", ["✓ [well] & <done>", "", "  indented"])
    shown = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    words = " ".join(shown).replace("\u00a0", " ")
    assert "$ go" in words
    assert "[well] & <done>" in words
    assert "  indented" in words
