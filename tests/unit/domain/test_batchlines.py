"""The lines of a Batch: how bytes divide into them, and what is told of wrong ones (§5.4)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway_core.contract.batch import MOST_ERRORS, MOST_LINES
from gateway_core.domain.batchlines import (
    MOST_DEPTH,
    MOST_LINE_BYTES,
    Line,
    LineSplitter,
    Validation,
    read_custom_id,
    read_request,
)

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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([b"\n", b"\r", BOM, b"\xef", b"\x00", b" ", b"ab", b"\xff{"])),
    st.integers(min_value=1, max_value=5),
)
@example([BOM, b"\r", b"\n"], 1)
def test_how_bytes_come_in_changes_nothing(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    assert split(data, size) == split(data, len(data) + 1)
    plain = data.removeprefix(BOM).split(b"\n")
    kept = [(n, p.removesuffix(b"\r")) for n, p in enumerate(plain, 1) if p.strip(b" \t\r")]
    assert [(found.number, found.data) for found in split(data, size)] == kept


def test_a_line_of_a_mebibyte_is_one_and_a_longer_one_is_not() -> None:
    fits = b"x" * MOST_LINE_BYTES
    data = fits + b"\r\n" + fits + b"x\r\n" + b"y" * (10 * MOST_LINE_BYTES) + b"\nz"
    found = split(data, 65_521)
    assert [(one.number, one.data) for one in found] == [(1, fits), (2, None), (3, None), (4, b"z")]
    splitter = LineSplitter()
    for _ in range(160):
        list(splitter.feed(b"y" * 65_536))
        assert len(splitter._rest) <= MOST_LINE_BYTES + 1, "memory follows the limit"


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
def test_each_fault_is_told_with_its_place(data: bytes, told: list[Any]) -> None:
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


def test_lines_are_told_by_their_physical_number() -> None:
    data = b"\n".join([BOM + line("a"), b"", b"  ", line("b")[:-1], line("a")])
    assert tell(data) == [("invalid_json_line", None, 4), ("duplicate_custom_id", "custom_id", 5)]
    assert check(data).total == 3


def test_every_repetition_names_the_first_line_of_its_id() -> None:
    data = b"\n".join([line("a"), line("b"), line("a"), line("é"), line("a"), line("é")])
    assert [p.message for p in check(data).problems] == [
        "Line 3 repeats the custom_id of line 1.",
        "Line 5 repeats the custom_id of line 1.",
        "Line 6 repeats the custom_id of line 4.",
    ]


def test_lines_that_name_other_models_are_told() -> None:
    other = {"model": "n", "input": "x"}
    data = b"\n".join([line("a"), line("b", body=other), line("c"), line("d", body=other)])
    validation = check(data)
    assert [(p.code, p.line) for p in validation.problems] == [
        ("model_mismatch", 2),
        ("model_mismatch", 4),
    ]
    assert validation.model is None
    assert check(line("a")).model == "m"


def test_a_hundred_problems_are_told_and_no_more_is_read() -> None:
    bad = b"{\n"
    assert len(check(bad * (MOST_ERRORS - 1) + line()).problems) == MOST_ERRORS - 1
    validation = check(bad * 500 + line())
    assert len(validation.problems) == MOST_ERRORS
    assert validation.is_over
    assert validation.total == MOST_ERRORS


def test_fifty_thousand_lines_are_taken_and_one_more_is_not() -> None:
    data = b"".join(line(f"i{n}") + b"\n" for n in range(MOST_LINES))
    validation = check(data + b"\n\n")
    assert (validation.total, validation.problems) == (MOST_LINES, [])
    assert tell(data + line("last")) == [("too_many_tasks", None, None)]


def test_a_line_found_good_can_be_read_at_any_depth_of_the_stack() -> None:
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


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_is_in_a_file_it_is_judged_and_what_is_good_is_read(data: st.DataObject) -> None:
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
