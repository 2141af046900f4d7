"""How often each input was moderated, for tests to check afterwards; part of `history`."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway_simulator.jobs import format_time

LONGEST_NAME = 200
"""Characters; a longer input is remembered by its beginning and a digest of the whole."""


@dataclass(slots=True)
class Asked:
    """How often an input came in and how often it was judged; times in epoch seconds."""

    asked: int
    answered: int
    first_at: float
    last_at: float


@dataclass(slots=True)
class ModerationHistory:
    """Every call and each of its inputs since the start or the last `clear`."""

    calls: int = 0
    answered: int = 0
    _inputs: dict[str, Asked] = field(default_factory=dict)

    def note_call(self, at: float, contents: Iterable[str]) -> list[Asked]:
        """Record that a well-formed call came in; `note_answer` takes what is returned."""
        self.calls += 1
        touched = list[Asked]()
        for content in contents:
            name = _name(content)
            known = self._inputs.get(name)
            if known is None:
                known = self._inputs[name] = Asked(0, 0, at, at)
            known.asked += 1
            known.last_at = at
            touched.append(known)
        return touched

    def note_answer(self, touched: Iterable[Asked]) -> None:
        """Record that a call was judged; its answer may get lost all the same."""
        self.answered += 1
        for each in touched:
            each.answered += 1

    def clear(self) -> None:
        """Forget all."""
        self.calls = self.answered = 0
        self._inputs = {}

    def describe(self) -> dict[str, Any]:
        """Return the counts as /control/history shows them."""
        return {"calls": self.calls, "answered": self.answered, "inputs": len(self._inputs)}

    def list_inputs(self, contains: str, least: int) -> dict[str, dict[str, Any]]:
        """Return the inputs in order of their first call, those of at least `least` calls."""
        return {
            name: {
                "asked": each.asked,
                "answered": each.answered,
                "first_at": format_time(each.first_at),
                "last_at": format_time(each.last_at),
            }
            for name, each in self._inputs.items()
            if each.asked >= least and contains in name
        }


def _name(content: str) -> str:
    if len(content) <= LONGEST_NAME:
        return content
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{content[:LONGEST_NAME]}…{digest[:16]}"
