"""The lines of a Batch: how bytes divide into them, and problems of invalid ones (§5.4)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway_core.api.batch import MOST_ERRORS, MOST_LINES, BatchStatus
from gateway_core.batches import lines
from gateway_core.batches.lines import (
    MOST_DEPTH,
    MOST_LINE_BYTES,
    Line,
    LineSplitter,
    Problem,
    Validation,
    read_custom_id,
    read_request,
    render_problems,
)
from tests.shares import IS_WHOLE

BOM = b"\xef\xbb\xbf"


def split(data: bytes, size: int = 1 << 20) -> list[Line]:
    splitter, lines = LineSplitter(), list[Line]()
    for start in range(0, len(data), size):
        lines += splitter.feed(data[start : start + size])
    return [*lines, *splitter.end()]


def line(custom_id: Any = "a", **changes: Any) -> bytes:
    value = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/moderations",
        "body": {"model": "m", "input": "x"},
        **changes,
    }
    return json.dumps({k: v for k, v in value.items() if v is not ...}).encode()


def check(data: bytes, size: int = 32 * 1024) -> Validation:
    validation = Validation(lambda body: None if "input" in body else ("c", "t", "input"))
    for start in range(0, len(data), size):
        validation.feed(data[start : start + size])
        if validation.is_over:
            break
    validation.end()
    return validation


def tell(data: bytes) -> list[tuple[str, str | None, int | None]]:
    return [(p.code, p.param, p.line) for p in check(data).problems]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"a", [(1, b"a")]),
        (b"a\n", [(1, b"a")]),
        (b"a\r\nb\r\n", [(1, b"a"), (2, b"b")]),
        (b"\n \t\r\na", [(3, b"a")]),
        (BOM + b"a\n" + BOM + b"b", [(1, b"a"), (2, BOM + b"b")]),
        (BOM, []),
        (BOM[:2], [(1, BOM[:2])]),
        (b"a\rb\n", [(1, b"a\rb")]),
        (b"a\x00\n", [(1, b"a\x00")]),
    ],
)
def test_lines_are_divided_at_lf(data: bytes, lines: list[tuple[int, bytes]]) -> None:
    for size in (1, 2, 1000):
        assert [(found.number, found.data) for found in split(data, size)] == lines


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([b"\n", b"\r", BOM, b"\xef", b"\x00", b" ", b"ab", b"\xff{"])),
    st.integers(min_value=1, max_value=5),
)
@example([BOM, b"\r", b"\n"], 1)
def test_lines_do_not_depend_on_the_size_of_chunks(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    assert split(data, size) == split(data, len(data) + 1)
    plain = data.removeprefix(BOM).split(b"\n")
    kept = [(n, p.removesuffix(b"\r")) for n, p in enumerate(plain, 1) if p.strip(b" \t\r")]
    assert [(found.number, found.data) for found in split(data, size)] == kept


def test_line_beyond_a_mebibyte_is_dropped_and_takes_no_memory() -> None:
    fits = b"x" * MOST_LINE_BYTES
    data = fits + b"\r\n" + fits + b"x\r\n" + b"y" * (10 * MOST_LINE_BYTES) + b"\nz"
    found = split(data, 65_521)
    assert [(one.number, one.data) for one in found] == [(1, fits), (2, None), (3, None), (4, b"z")]
    splitter = LineSplitter()
    for _ in range(160):
        list(splitter.feed(b"y" * 65_536))
        assert splitter.kept <= MOST_LINE_BYTES + 1, "memory follows the limit"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (line(), []),
        (b"", [("empty_file", None, None)]),
        (b" \r\n\n", [("empty_file", None, None)]),
        (line()[:-3], [("invalid_json_line", None, 1)]),
        (b"[1]", [("invalid_json_line", None, 1)]),
        (b"NaN", [("invalid_json_line", None, 1)]),
        (line().replace(b'"x"', b"Infinity"), [("invalid_json_line", None, 1)]),
        (line().replace(b'"x"', b'"\x00"'), [("invalid_json_line", None, 1)]),
        (line().replace(b'"x"', b'"\xff"'), [("invalid_json_line", None, 1)]),
        (line().replace(b'"x"', b"9" * 5000), [("invalid_json_line", None, 1)]),
        (line() + line("b"), [("invalid_json_line", None, 1)]),
        (b"[" * 200_000, [("invalid_json_line", None, 1)]),
        (b"x" * (MOST_LINE_BYTES + 1), [("line_too_long", None, 1)]),
        (line(...), [("missing_required_parameter", "custom_id", 1)]),
        (line(None), [("missing_required_parameter", "custom_id", 1)]),
        (line(7), [("invalid_value", "custom_id", 1)]),
        (line(""), [("invalid_value", "custom_id", 1)]),
        (line("i" * 64), []),
        (line("i" * 65), [("invalid_value", "custom_id", 1)]),
        (line(method=...), [("missing_required_parameter", "method", 1)]),
        (line(method="GET"), [("invalid_method", "method", 1)]),
        (line(method=["POST"]), [("invalid_method", "method", 1)]),
        (line(url=...), [("missing_required_parameter", "url", 1)]),
        (line(url="/v1/chat/completions"), [("url_mismatch", "url", 1)]),
        (line(body=...), [("missing_required_parameter", "body", 1)]),
        (line(body=[]), [("invalid_value", "body", 1)]),
        (line(body={"input": "x"}), [("missing_required_parameter", "body.model", 1)]),
        (line(body={"model": 3, "input": "x"}), [("invalid_value", "body.model", 1)]),
        (line(body={"model": "m" * 254, "input": ""}), [("invalid_value", "body.model", 1)]),
        (line(body={"model": "m"}), [("c", "body.input", 1)]),
        (line(url="/x", method="X"), [("invalid_method", "method", 1), ("url_mismatch", "url", 1)]),
    ],
)
def test_fault_is_named_with_its_place(data: bytes, told: list[Any]) -> None:
    assert tell(data) == told


@pytest.mark.parametrize("blank", [b"\n", b" \n", b"\r\n\t\n"])
def test_blank_lines_are_counted_all_at_once(blank: bytes) -> None:
    taken: list[int] = []

    class Counting(LineSplitter):
        def _take(self) -> Iterator[Line]:
            taken.append(1)
            return super()._take()

    splitter, count = Counting(), (1 << 20) // len(blank)
    data = b"a\n" + blank * count + b"b\n" + blank * count + b"c"
    lines = [*splitter.feed(data), *splitter.end()]
    each = blank.count(b"\n") * count
    assert [(one.number, one.data) for one in lines] == [
        (1, b"a"),
        (2 + each, b"b"),
        (3 + 2 * each, b"c"),
    ]
    assert len(taken) < 10


def test_lines_are_named_by_their_physical_number() -> None:
    data = b"\n".join([BOM + line("a"), b"", b"  ", line("b")[:-1], line("a")])
    assert tell(data) == [("invalid_json_line", None, 4), ("duplicate_custom_id", "custom_id", 5)]
    assert check(data).total == 3


def test_repetition_names_the_first_line_of_its_id() -> None:
    data = b"\n".join([line("a"), line("b"), line("a"), line("é"), line("a"), line("é")])
    assert [p.message for p in check(data).problems] == [
        "Line 3 repeats the custom_id of line 1.",
        "Line 5 repeats the custom_id of line 1.",
        "Line 6 repeats the custom_id of line 4.",
    ]


def test_lines_that_name_other_models_are_named() -> None:
    other = {"model": "n", "input": "x"}
    data = b"\n".join([line("a"), line("b", body=other), line("c"), line("d", body=other)])
    validation = check(data)
    assert [(p.code, p.line) for p in validation.problems] == [
        ("model_mismatch", 2),
        ("model_mismatch", 4),
    ]
    assert validation.model is None
    assert check(line("a")).model == "m"


def test_validation_ends_after_a_hundred_problems() -> None:
    bad = b"{\n"
    assert len(check(bad * (MOST_ERRORS - 1) + line()).problems) == MOST_ERRORS - 1
    validation = check(bad * 500 + line())
    assert len(validation.problems) == MOST_ERRORS
    assert validation.is_over
    assert validation.total == MOST_ERRORS


@pytest.mark.parametrize("character", ["x", "é", "😀", "\x00", "\x7f", "\u2028", '"', "\ud83d"])
@pytest.mark.parametrize("count", [1, 32, 500])
def test_errors_of_a_file_are_bounded_in_the_object(character: str, count: int) -> None:
    model = {"model": character * 253, "input": "x"}
    problems = [Problem("invalid_value", character * 4000, "body.model", 2**31 - 1)] * count
    told = render_problems(problems)
    assert len(told) == min(count, MOST_ERRORS)
    assert all(each["message"] and len(each["message"].encode()) <= 160 for each in told)
    # a quotation mark is two bytes in JSON
    assert len(json.dumps(told, ensure_ascii=False).encode()) <= 40 * 1024
    status = BatchStatus.model_validate({"errors": told})
    assert len(status.errors or ()) == len(told)
    lines = b"\n".join(line(n, body=model) for n in range(200))
    assert len(json.dumps(render_problems(check(lines).problems)).encode()) <= 32 * 1024


def test_message_is_cut_at_a_character_to_160_bytes() -> None:
    [told] = render_problems([Problem("c", "é" * 80)])
    assert told == {"code": "c", "message": "é" * 80}
    [told] = render_problems([Problem("c", "x" + "é" * 80, "input", 3)])
    assert told == {"code": "c", "message": "x" + "é" * 79, "param": "input", "line": 3}


def test_most_lines_are_accepted_and_one_more_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_LINES == 50_000
    monkeypatch.setattr(lines, "MOST_LINES", 500)
    data = b"".join(line(f"i{n}") + b"\n" for n in range(500))
    validation = check(data + b"\n\n")
    assert (validation.total, validation.problems) == (500, [])
    assert tell(data + line("last")) == [("too_many_tasks", None, None)]


def test_valid_line_can_be_parsed_at_any_depth_of_the_stack() -> None:
    def nest(depth: int) -> bytes:
        return line(extra=...)[:-1] + b',"extra":' + b"[" * depth + b"]" * depth + b"}"

    def read_below(frames: int) -> str:
        return read_custom_id(nest(MOST_DEPTH - 2)) if not frames else read_below(frames - 1)

    assert tell(nest(MOST_DEPTH - 2)) == []
    assert read_below(300) == "a"
    assert tell(nest(MOST_DEPTH)) == [("invalid_json_line", None, 1)]
    assert tell(nest(900)) == [("invalid_json_line", None, 1)]
    wide = json.dumps([[1]] * 5000).encode()
    assert tell(line()[:-1] + b',"extra":' + wide + b"}") == []


GOOD = "good"
KINDS = {
    GOOD: None,
    "blank": None,
    "truncated": "invalid_json_line",
    "zeros": "invalid_json_line",
    "no text": "invalid_json_line",
    "mark within": "invalid_json_line",
    "mark in front": "invalid_json_line",
    "long": "line_too_long",
    "very long": "line_too_long",
    "long and blank": "line_too_long",
    "of one mebibyte": None,
    "split by CR": None,
}
"""Kinds of lines, and how each fails the file."""


def write_kind(kind: str, number: int, cut: int) -> bytes:
    good = line(f"i{number}")
    place = 1 + cut % (len(good) - 2)
    return {
        GOOD: good,
        "blank": b" \t" * (cut % 3),
        "truncated": good[:place],
        "zeros": good[:place] + b"\x00" * (1 + cut % 3) + good[place:],
        "no text": good[:-3] + b',"n":"' + (b"\xff", b"\xc3", b"\xed\xa0\x80")[cut % 3] + b'"}}',
        "mark within": b"[" + BOM + b"]",
        "mark in front": b" " + BOM + good,
        "long": good[:-1] + b" " * (MOST_LINE_BYTES + 1 - len(good)) + b"}",
        "very long": good + b" " * (10 * MOST_LINE_BYTES),
        "long and blank": b" " * (MOST_LINE_BYTES + 1 + cut),
        "of one mebibyte": good[:-1] + b" " * (MOST_LINE_BYTES - len(good)) + b"}",
        "split by CR": good.replace(b", ", b",\r", 1),
    }[kind]


@settings(max_examples=400 if IS_WHOLE else 25)
@given(
    st.lists(
        st.tuples(
            # the long ones seldom: they cost most
            st.sampled_from([*KINDS, *[kind for kind in KINDS if "long" not in kind] * 3]),
            st.integers(0, 200),
            st.sampled_from([b"\n", b"\r\n"]),
        ),
        max_size=8,
    ),
    st.booleans(),
    st.booleans(),
    st.sampled_from([7, 1000, 32 * 1024, 1 << 20]),
)
@example([("very long", 0, b"\r\n"), (GOOD, 0, b"\n")], True, False, 1000)
@example([("no text", 1, b"\n"), ("long", 0, b"\r\n")], True, False, 32 * 1024)
@example([("of one mebibyte", 0, b"\r\n")], True, False, 1 << 20)
def test_broken_lines_of_any_file_are_named_by_their_number(
    parts: list[tuple[str, int, bytes]], marked: bool, ended: bool, size: int
) -> None:
    texts = [write_kind(kind, n, cut) + end for n, (kind, cut, end) in enumerate(parts)]
    if texts and not ended:
        texts[-1] = texts[-1].removesuffix(b"\n").removesuffix(b"\r")
    data = (BOM if marked else b"") + b"".join(texts)
    if len(data) > 100_000:
        size = max(size, 1000)
    validation = check(data, size)
    wanted: list[tuple[str, int | None]] = [
        (code, number)
        for number, (kind, _, _) in enumerate(parts, 1)
        if (code := KINDS[kind]) is not None
    ]
    total = sum(kind != "blank" for kind, _, _ in parts)
    if not total:
        wanted = [("empty_file", None)]
    assert [(p.code, p.line) for p in validation.problems] == wanted
    assert validation.total == total
    assert len(render_problems(validation.problems)) == len(wanted)


@settings(max_examples=800 if IS_WHOLE else 80)
@given(st.data())
def test_any_file_is_judged_and_its_valid_lines_are_parsed(data: st.DataObject) -> None:
    good = [line(f"i{n}") for n in range(4)]
    text = bytearray(b"\r\n".join(good))
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        junk = data.draw(st.sampled_from([b"\x00", b"\n", b"\r", BOM, b"\xff", b'"', b"{", b"}"]))
        text[place : place + data.draw(st.integers(0, 2))] = junk
    size = data.draw(st.integers(1, 50))
    validation, whole = check(bytes(text), size), check(bytes(text))
    assert validation.problems == whole.problems
    assert all(p.line is None or p.line <= text.count(b"\n") + 1 for p in whole.problems)
    if not whole.problems:
        requests = [read_request(found.data or b"") for found in split(bytes(text))]
        assert len({request.custom_id for request in requests}) == whole.total
