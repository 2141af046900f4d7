"""Pictures of the documents: what may be in them, and how a recording becomes an animation."""

import re
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tools.pictures.demo import record, shorten_pauses
from tools.pictures.studio import describe_days
from tools.pictures.terminal import Output, Run, draw_recording, replay, type_command
from tools.processes import CommandFailed

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
    assert "url(" not in text
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


def test_recording_has_what_a_command_wrote_and_when(tmp_path):
    command = ["sh", "-c", "printf one; sleep 0.3; echo; pwd; stty size"]
    found = record(command, tmp_path, {"PATH": "/usr/bin:/bin"}, seconds=20)
    text = b"".join(output.data for output in found).decode()
    assert text.split() == ["one", str(tmp_path), "60", "108"]
    assert found[-1].at >= found[0].at + 0.3


def test_failed_and_endless_commands_are_told_with_their_output(tmp_path):
    env = {"PATH": "/usr/bin:/bin"}
    with pytest.raises(CommandFailed, match="ended with 3: no luck"):
        record(["sh", "-c", "echo no luck; exit 3"], tmp_path, env, seconds=20)
    with pytest.raises(CommandFailed, match="did not end"):
        record(["sleep", "60"], tmp_path, env, seconds=0.2)


def test_long_pauses_are_shortened_with_what_a_spinner_wrote_in_them():
    outputs = [
        Output(1.0, b"first\r\n"),
        Output(6.0, b"\r|"),
        Output(11.0, b"\rsecond\r\n"),
        Output(11.5, b"third"),
    ]
    shortened = shorten_pauses(outputs, 2.0)
    assert [output.at for output in shortened] == [1.0, 2.0, 3.0, 3.5]
    assert [output.data for output in shortened] == [output.data for output in outputs]


def test_rows_are_shown_for_the_time_that_they_had_a_text():
    outputs = [
        Output(0.0, b"\x1b[32m|\x1b[0m wait"),
        Output(1.0, b"\r\x1b[2Kdone \x1b[1mnow\x1b[0m\r\n"),
        Output(2.0, b"   <end>"),
    ]
    spinner, done, end = replay(outputs, columns=20, rows=4)
    assert spinner.line == (Run(0, "|", "#56d364"), Run(2, "wait"))
    assert (spinner.since, spinner.until) == (0.0, 1.0)
    assert done.line == (Run(0, "done"), Run(5, "now", is_bold=True))
    assert (done.row, done.since, done.until) == (0, 1.0, None)
    assert (end.row, end.line) == (1, (Run(3, "<end>"),))


def test_animation_ends_with_the_last_screen_and_shows_it_alone_without_motion():
    outputs = type_command("go", [Output(0.0, b"wait"), Output(1.0, b"\r\x1b[2K<done> & well")])
    svg = draw_recording("go", replay(outputs, columns=20, rows=4), 20)
    root = ElementTree.fromstring(svg)
    groups = {group.get("id"): group for group in root.iter(f"{SVG}g")}
    still = ["".join(group.itertext()) for group in groups.values() if not group.get("class")]
    assert still == ["$ go", "<done> & well"]
    style = root.findtext(f"{SVG}style")
    before, motion = style.split("@media(prefers-reduced-motion:no-preference)")
    assert "animation" not in before
    assert motion.count("step-end infinite") == len(groups)
    for name in groups:
        assert f"#{name}{{animation:k{name[1:]} " in motion
