"""The results of a Batch's lines: as they are kept while it runs, and put in order at its end.

Pure. A record is what is kept of one line that has ended: its number, whether it goes into the
output or the error file, and the line of that file, ready to be copied (contract §5.6, B.3).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

OUTPUT = b"o"
ERROR = b"e"
Unrun = Literal["batch_expired", "batch_cancelled"]
_MESSAGES: Mapping[Unrun, str] = {
    "batch_expired": "The completion window ended before this request ran.",
    "batch_cancelled": "The batch was cancelled before this request ran.",
}


class RecordsDamaged(Exception):
    """What was kept of a batch's results cannot be read."""


@dataclass(frozen=True, slots=True)
class LineResult:
    """One line that has ended. `text` is its line of the file, without LF."""

    number: int
    succeeded: bool
    text: bytes

    def encode(self) -> bytes:
        """The record, a line of its own."""
        kind = OUTPUT if self.succeeded else ERROR
        return b"%d\t%b\t%b\n" % (self.number, kind, self.text)


def decode_result(record: bytes) -> LineResult:
    """The result of a record without its LF. RecordsDamaged."""
    number, tab, rest = record.partition(b"\t")
    kind, other_tab, text = rest.partition(b"\t")
    if not (tab and other_tab) or kind not in (OUTPUT, ERROR) or not number.isdigit():
        raise RecordsDamaged("a record of a line's result is damaged")
    return LineResult(int(number), kind == OUTPUT, text)


def tell_answer(
    number: int, *, request: str, custom_id: str, call: str, status: int, body: Mapping[str, Any]
) -> LineResult:
    """The result of a line that was answered with an HTTP status; `request`, `call` are its ids."""
    response = {"status_code": status, "request_id": call, "body": body}
    text = _write({"id": request, "custom_id": custom_id, "response": response, "error": None})
    return LineResult(number, 200 <= status < 300, text)


def tell_unrun(number: int, *, request: str, custom_id: str, code: Unrun) -> LineResult:
    """The result of a line that was never run."""
    error = {"code": code, "message": _MESSAGES[code]}
    text = _write({"id": request, "custom_id": custom_id, "response": None, "error": error})
    return LineResult(number, False, text)


def _write(value: Mapping[str, Any]) -> bytes:
    # ASCII, so that what is no text (half a surrogate pair) goes out as it came in
    return json.dumps(value, separators=(",", ":")).encode()
