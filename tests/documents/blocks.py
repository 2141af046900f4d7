"""Blocks of code in the documents, and what the tests do with each."""

from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced or indented block: its language, empty if the page names none."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """The block is a shell script; all of a page run in one shell, after `before` of each.

    `replace` puts values that exist in place of those that stand for a reader's own.
    """

    begins: str
    before: str = ""
    replace: tuple[tuple[str, str], ...] = ()
    prints: str = ""
    """A pattern that the page's output has."""


@dataclass(frozen=True, slots=True)
class Python:
    """The block is a program, run after the lines of `before`."""

    begins: str
    before: str = ""
    replace: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Objects:
    """The API server accepts the objects of the block, which it does not store."""

    begins: str


@dataclass(frozen=True, slots=True)
class Values:
    """The chart's schema accepts the values in the block."""

    begins: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The block is YAML or JSON, of which tests know no more."""

    begins: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another test reads or runs the block; `test` names the page."""

    begins: str
    test: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """The block cannot be run or validated."""

    begins: str
    reason: str


Treatment = Run | Python | Objects | Values | Parsed | Elsewhere | NotRun


def read_blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    tokens = MarkdownIt().parse((ROOT / page).read_text())
    return [
        Block(token.info.strip(), token.content)
        for token in tokens
        if token.type in ("fence", "code_block")
    ]
