"""What `doctor` reports: checks, and what each of them found."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from gateway_cli.output import Document

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

    def describe(self) -> Document:
        """As a document."""
        return {
            "level": self.level.value,
            "subject": self.subject,
            "text": self.text,
            "action": self.action,
        }


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
        """As a document."""
        return {
            "name": self.name,
            "state": self.state,
            "summary": self.summary,
            "skipped": self.skipped,
            "findings": [finding.describe() for finding in self.findings],
        }


def error(subject: str, text: str, action: str) -> Finding:
    """A finding that breaks calls now."""
    return Finding(Level.ERROR, subject, text, action)


def warning(subject: str, text: str, action: str) -> Finding:
    """A finding that breaks calls soon, or some of them."""
    return Finding(Level.WARNING, subject, text, action)


def note(subject: str, text: str, action: str) -> Finding:
    """A finding that breaks nothing."""
    return Finding(Level.NOTE, subject, text, action)


def bound(findings: Iterable[Finding], where: str) -> list[Finding]:
    """The worst `MOST` findings, and how many more there are; `where` lists them all."""
    order = list(Level)
    ordered = sorted(findings, key=lambda finding: order.index(finding.level))
    if len(ordered) <= MOST:
        return ordered
    rest = ordered[MOST:]
    more = Finding(rest[0].level, "and more", f"{len(rest)} further findings of this kind", where)
    return [*ordered[:MOST], more]
