"""The lines of a Batch's input: how bytes divide into them, and what is wrong with them (§5.4).

Pure, and fed piece by piece, so that memory does not grow with the file. Used by the operator,
which checks all lines before it runs the first, and reads them again as it runs them.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from gateway_core.api.batch import MOST_ERRORS, MOST_LINES, MOST_MESSAGE_BYTES
from gateway_core.providers.moderation import is_text

ENDPOINT = "/v1/moderations"
MOST_LINE_BYTES = 1024 * 1024
LONG_BYTES = 64 * 1024
"""From this length on a line is parsed beside an event loop: some take a tenth of a second."""
MOST_ID_CHARACTERS = 64
MOST_DEPTH = 100
_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"[ \t\r\n]*")
_MOST_NAMED_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank: its physical number from 1, and its bytes without the ending.

    `data` is None where the line is longer than `MOST_LINE_BYTES`.
    """

    number: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with the file, at a line if it has one."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def to_status(self) -> dict[str, Any]:
        """As the batch's status has it; what is unknown is left out.

        The message is cut at a character, to at most `MOST_MESSAGE_BYTES` of UTF-8.
        """
        # what a client wrote may be quoted, and may be no text: that is written by nobody
        start = self.message[:MOST_MESSAGE_BYTES]
        shown = "".join(c if c.isprintable() else "\ufffd" for c in start)
        text = shown.encode(errors="replace")[:MOST_MESSAGE_BYTES].decode(errors="ignore")
        told: dict[str, Any] = {"code": self.code, "message": text}
        told |= {"param": self.param, "line": self.line}
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Request:
    """A line that was read: what it is called by, and the body of its call."""

    custom_id: str
    body: dict[str, Any]


def tell_problems(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """The first `MOST_ERRORS` of them, as the batch's status has them."""
    return [problem.to_status() for problem in islice(problems, MOST_ERRORS)]


CheckBody = Callable[[Mapping[str, Any]], tuple[str, str, str] | None]
"""What is wrong with a call's body: code, message, and parameter of the body; None if nothing."""


class LineSplitter:
    """Divides bytes into lines at LF; CR before it and a byte order mark at the start are dropped.

    Blank lines count and are not told. What is kept is less than a line of `MOST_LINE_BYTES`.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._too_long = False
        self._number = 0
        self._head = b""
        self._begun = False

    def feed(self, data: bytes) -> Iterator[Line]:
        """The lines that end in `data`; to be exhausted before the next call."""
        if not self._begun:
            self._head += data
            if len(self._head) < len(_BOM) and _BOM.startswith(self._head):
                return
            data, self._head, self._begun = self._head.removeprefix(_BOM), b"", True
        start = 0
        while start < len(data):
            if not self._rest and not self._too_long:
                start = self._skip_blank(data, start)
            end = data.find(b"\n", start)
            if end < 0:
                self._keep(data[start:])
                return
            self._keep(data[start:end])
            yield from self._take()
            start = end + 1

    @property
    def kept(self) -> int:
        """Bytes of the line that has not ended yet."""
        return len(self._rest)

    def end(self) -> Iterator[Line]:
        """The last line, where it has no LF."""
        if self._head:
            # a part of a byte order mark, and nothing else
            self._keep(self._head)
        if self._rest or self._too_long:
            yield from self._take()

    def _skip_blank(self, data: bytes, start: int) -> int:
        """Counts the blank lines from `start` on, all at once; where the next line begins."""
        # as far as no line that is only blank can be too long
        run = _BLANK.match(data, start, min(len(data), start + MOST_LINE_BYTES))
        end = data.rfind(b"\n", start, run.end() if run else start) + 1
        if not end:
            return start
        self._number += data.count(b"\n", start, end)
        return end

    def _keep(self, part: bytes) -> None:
        if self._too_long:
            return
        self._rest = self._rest + part if self._rest else part
        # one more may be the CR that is no part of the line
        if len(self._rest) > MOST_LINE_BYTES + 1:
            self._rest, self._too_long = b"", True

    def _take(self) -> Iterator[Line]:
        self._number += 1
        data, too_long = self._rest.removesuffix(b"\r"), self._too_long
        self._rest, self._too_long = b"", False
        if too_long or len(data) > MOST_LINE_BYTES:
            yield Line(self._number, None)
        elif data.strip(b" \t\r"):
            yield Line(self._number, data)


def read_request(data: bytes) -> Request:
    """The request of a line that was found to be good. ValueError for another."""
    value = _parse(data)
    return Request(value["custom_id"], value["body"])


def read_custom_id(data: bytes) -> str:
    """What a line that was found to be good is called by. ValueError for another."""
    return str(_parse(data)["custom_id"])


class Validation:
    """The check of all lines, as far as `MOST_ERRORS`. `is_over` says that no more need be fed.

    `total` are the lines seen that are not blank, `model` what all of them name; None where they
    do not agree or name none.
    """

    def __init__(self, check_body: CheckBody) -> None:
        self._check_body = check_body
        self._splitter = LineSplitter()
        self._seen: dict[bytes, int] = {}
        self._models: list[str] = []
        self.model_line: int | None = None
        self.problems: list[Problem] = []
        self.total = 0
        self.is_over = False

    @property
    def model(self) -> str | None:
        """The model that all lines name."""
        return self._models[0] if len(self._models) == 1 else None

    @property
    def kept(self) -> int:
        """Bytes of the line that has not ended yet: so much is parsed with the next that end."""
        return self._splitter.kept

    def feed(self, data: bytes) -> None:
        """Checks the lines that end in `data`."""
        for line in self._splitter.feed(data):
            self._check(line)
            if self.is_over:
                return

    def end(self) -> None:
        """Checks the last line, and what can be told of the file as a whole."""
        if not self.is_over:
            for line in self._splitter.end():
                self._check(line)
        if not self.total:
            self._report(Problem("empty_file", "The file has no requests."))

    def _check(self, line: Line) -> None:
        self.total += 1
        if self.total > MOST_LINES:
            text = f"The file has more than {MOST_LINES} requests."
            self._report(Problem("too_many_tasks", text))
            self.is_over = True
            return
        if line.data is None:
            text = f"Line {line.number} is longer than {MOST_LINE_BYTES} bytes."
            self._report(Problem("line_too_long", text, None, line.number))
            return
        try:
            value = _parse(line.data)
        except (ValueError, RecursionError):
            text = f"Line {line.number} is not valid JSON."
            self._report(Problem("invalid_json_line", text, None, line.number))
            return
        if not isinstance(value, dict):
            text = f"Line {line.number} is not a JSON object."
            self._report(Problem("invalid_json_line", text, None, line.number))
            return
        for code, message, param in self._find_faults(line.number, value):
            text = f"Line {line.number}: {message}"
            if code == "duplicate_custom_id":
                text = message
            self._report(Problem(code, text, param, line.number))

    def _find_faults(self, number: int, value: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        yield from self._check_id(number, value)
        method, url, body = (value.get(name) for name in ("method", "url", "body"))
        if method is None:
            yield _missing("method")
        elif method != "POST":
            yield "invalid_method", "`method` must be `POST`.", "method"
        if url is None:
            yield _missing("url")
        elif url != ENDPOINT:
            yield "url_mismatch", f"`url` must be the batch's endpoint, `{ENDPOINT}`.", "url"
        if body is None:
            yield _missing("body")
        elif not isinstance(body, dict):
            yield "invalid_value", "`body` must be an object.", "body"
        else:
            yield from self._check_model(number, body)
            fault = self._check_body(body)
            if fault is not None and fault[2] != "model":
                code, message, param = fault
                yield code, message, f"body.{param}"

    def _check_id(self, number: int, value: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        custom_id = value.get("custom_id")
        if custom_id is None:
            yield _missing("custom_id")
            return
        if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MOST_ID_CHARACTERS:
            text = f"`custom_id` must be a string of 1 to {MOST_ID_CHARACTERS} characters."
            yield "invalid_value", text, "custom_id"
            return
        if not is_text(custom_id):
            yield "invalid_value", "`custom_id` has half a character.", "custom_id"
            return
        digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            text = f"Line {number} repeats the custom_id of line {first}."
            yield "duplicate_custom_id", text, "custom_id"

    def _check_model(self, number: int, body: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        model = body.get("model")
        if model is None:
            yield _missing("body.model")
        elif not isinstance(model, str) or not 1 <= len(model) <= 253:
            yield (
                "invalid_value",
                "`body.model` must be a string of 1 to 253 characters.",
                "body.model",
            )
        elif not is_text(model):
            yield "invalid_value", "`body.model` has half a character.", "body.model"
        elif not self._models:
            self._models.append(model)
            self.model_line = number
        elif model != self._models[0]:
            del self._models[2:]
            self._models.append(model)
            named = self._models[0][:_MOST_NAMED_CHARACTERS]
            text = f"`body.model` differs from that of line {self.model_line}, {named}."
            yield "model_mismatch", text, "body.model"

    def _report(self, problem: Problem) -> None:
        if len(self.problems) < MOST_ERRORS:
            self.problems.append(problem)
        self.is_over = self.is_over or len(self.problems) >= MOST_ERRORS


def _missing(param: str) -> tuple[str, str, str]:
    return "missing_required_parameter", f"`{param}` is missing.", param


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _parse(data: bytes) -> Any:
    """ValueError, also for what is nested too deep: how deep a parser goes depends on its caller's
    depth, and a line that was found to be good is to be read at every place."""
    value = _DECODER.decode(data.decode())
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return
        level = inner
    raise ValueError(f"nested more than {MOST_DEPTH} deep")
