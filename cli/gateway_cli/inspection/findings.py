"""What `doctor` reports: checks, and what each of them found."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial

from gateway_cli.output import Document, count

MOST = 10
"""Findings of one check that are printed; the rest is counted."""


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with what, and what to do."""

    level: Level
    subject: str
    text: str
    action: str


error, warning, note = (partial(Finding, level) for level in Level)
"""A finding that breaks calls now, soon or some of them, and none."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was looked at, and what was found.

    `skipped`: why nothing could be looked at.
    """

    name: str
    summary: str = ""
    findings: list[Finding] = field(default_factory=list)
    skipped: str | None = None

    @property
    def state(self) -> str:
        """`ok`, `note`, `warning`, `error` or `skipped`."""
        if self.skipped is not None:
            return "skipped"
        found = {finding.level for finding in self.findings}
        return next((level.value for level in Level if level in found), "ok")

    def describe(self) -> Document:
        """Return the document for scripts."""
        return {**asdict(self), "state": self.state}


def bound(findings: Iterable[Finding], where: str) -> list[Finding]:
    """Return the worst `MOST` findings and how many more there are; `where` lists them all."""
    ordered = sorted(findings, key=lambda finding: list(Level).index(finding.level))
    shown, rest = ordered[:MOST], ordered[MOST:]
    if rest:
        text = f"{count(len(rest), 'further finding')} of this kind"
        shown.append(Finding(rest[0].level, "and more", text, where))
    return shown
