"""Errors that a provider tells of in the body of an answer, read as its resource declares.

Used by `http`, before the status of an answer is looked at.
"""

from enum import Enum
from typing import Any

from gateway_core.adapters.upstreams.answers import (
    Answer,
    make_busy,
    make_denied,
    make_gone,
    read_wait,
    read_word,
)
from gateway_core.contract.provider import ErrorWords
from gateway_core.domain.expressions import Expression, ExpressionError
from gateway_core.ports.upstream import UpstreamError, UpstreamRejected, UpstreamUnclear


class _Meaning(Enum):
    REFUSED = "refused"
    BUSY = "busy"
    DENIED = "denied"
    UNKNOWN_JOB = "unknown job"


class ErrorReader:
    """Finds an answer's error by its code. Without a declaration it finds none."""

    def __init__(self, words: ErrorWords | None) -> None:
        self._code = Expression(words.code) if words else None
        self._wait = Expression(words.retry_after) if words and words.retry_after else None
        self._meanings: dict[str, _Meaning] = {}
        if words:
            self._meanings = {
                **dict.fromkeys(words.refused or (), _Meaning.REFUSED),
                **dict.fromkeys(words.busy or (), _Meaning.BUSY),
                **dict.fromkeys(words.denied or (), _Meaning.DENIED),
                **dict.fromkeys(words.unknown_job or (), _Meaning.UNKNOWN_JOB),
            }

    def find(self, answer: Answer) -> UpstreamError | None:
        """The error that the body tells of, None where the status decides.

        A code that is not declared tells nothing more than the status, but no 2xx is then taken
        for a success.
        """
        if self._code is None:
            return None
        try:
            document = answer.parse()
            code = self._code.evaluate(document)
            word = None if code is None else read_word(code)
        except (UpstreamUnclear, ExpressionError):
            return None  # no JSON, or of another shape: what reads it next says so
        if word is None:
            return None
        match self._meanings.get(word):
            case _Meaning.REFUSED:
                return UpstreamRejected("The provider refused the request.")
            case _Meaning.BUSY:
                return make_busy(self._read_wait(document) or answer.retry_after)
            case _Meaning.DENIED:
                return make_denied(answer.status)
            case _Meaning.UNKNOWN_JOB:
                return make_gone()
        if not answer.ok:
            return None
        return UpstreamUnclear(
            "The provider answered with an error.",
            retry_after=self._read_wait(document) or answer.retry_after,
        )

    def _read_wait(self, document: Any) -> float | None:
        try:
            return read_wait(self._wait.evaluate(document)) if self._wait else None
        except ExpressionError:
            return None
