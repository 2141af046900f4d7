"""Lines of a Batch's input: splitting and validation (contract §5.4). Pure.

Both are fed piece by piece, so that memory does not grow with the file. The operator validates all
lines before it runs the first, and reads them again as it runs them.
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
"""Longer lines are parsed in a thread: some take a tenth of a second."""
MOST_ID_CHARACTERS = 64
MOST_DEPTH = 100
_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"[ \t\r\n]*")
_MOST_NAMED_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank: its physical number from 1, and its bytes without line ending.

    `data` is None for a line of more than `MOST_LINE_BYTES`.
    """

    number: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the file, mostly at a line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def to_status(self) -> dict[str, Any]:
        """Return the problem as in the batch's status, its message cut to `MOST_MESSAGE_BYTES`."""
        # the message may quote the client's input, which may be unprintable
        start = self.message[:MOST_MESSAGE_BYTES]
        shown = "".join(c if c.isprintable() else "\ufffd" for c in start)
        text = shown.encode(errors="replace")[:MOST_MESSAGE_BYTES].decode(errors="ignore")
        fields = {"code": self.code, "message": text, "param": self.param, "line": self.line}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a line: its id from the client, and the body of its call."""

    custom_id: str
    body: dict[str, Any]


def render_problems(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return the first `MOST_ERRORS` problems as in the batch's status."""
    return [problem.to_status() for problem in islice(problems, MOST_ERRORS)]


CheckBody = Callable[[Mapping[str, Any]], tuple[str, str, str] | None]
"""Validates a call's body: code, message and parameter of its first problem, or None."""


class LineSplitter:
    """Splits bytes into lines at LF; drops CR before it, and a byte order mark at the start.

    Blank lines count but are not returned. It buffers at most `MOST_LINE_BYTES`.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._too_long = False
        self._number = 0
        self._head = b""
        self._begun = False

    def feed(self, data: bytes) -> Iterator[Line]:
        """Yield the lines that end in `data`; exhaust them before the next call."""
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
        """Bytes of the incomplete line."""
        return len(self._rest)

    def end(self) -> Iterator[Line]:
        """Yield the last line, if it has no LF."""
        if self._head:
            # the file is a part of a byte order mark, and nothing else
            self._keep(self._head)
        if self._rest or self._too_long:
            yield from self._take()

    def _skip_blank(self, data: bytes, start: int) -> int:
        """Count blank lines from `start` on, all at once; the start of the next line."""
        # bounded, so that a blank line beyond the longest line is still found to be too long
        run = _BLANK.match(data, start, min(len(data), start + MOST_LINE_BYTES))
        end = data.rfind(b"\n", start, run.end() if run else start) + 1
        if not end:
            return start
        self._number += data.count(b"\n", start, end)
        return end

    def _keep(self, part: bytes) -> None:
        if self._too_long:
            return
        # quadratic only for pieces much smaller than a line, and bounded by the longest line
        self._rest = self._rest + part if self._rest else part
        # one more byte may be the CR, which does not count
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
    """Return the request of a valid line. ValueError."""
    value = _parse(data)
    return Request(value["custom_id"], value["body"])


def read_custom_id(data: bytes) -> str:
    """Return the `custom_id` of a valid line. ValueError."""
    return str(_parse(data)["custom_id"])


class Validation:
    """Validation of all lines, until there are `MOST_ERRORS` problems (`is_over`).

    `total` counts lines that are not blank, `model` is the one that all of them name, if any.
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
        """The model that all lines name; None if they name several or none."""
        return self._models[0] if len(self._models) == 1 else None

    @property
    def kept(self) -> int:
        """Bytes of the incomplete line, which are parsed with the next piece."""
        return self._splitter.kept

    def feed(self, data: bytes) -> None:
        """Check the lines that end in `data`."""
        for line in self._splitter.feed(data):
            self._check(line)
            if self.is_over:
                return

    def end(self) -> None:
        """Check the last line, and the file as a whole."""
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
            is_whole = code == "duplicate_custom_id"
            text = message if is_whole else f"Line {line.number}: {message}"
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
        # digests of 16 bytes: ids of 50,000 lines would take several times as much memory
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
            # two are enough to know that lines disagree
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


# not orjson: it rejects half a surrogate pair, which clients may send in texts
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _parse(data: bytes) -> Any:
    """Return the JSON value. ValueError, also beyond a fixed depth.

    The depth at which the decoder fails depends on the caller's stack, and a line that validation
    accepts must be readable everywhere.
    """
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
