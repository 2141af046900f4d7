"""Code of the guides: files of examples/guides, shown in pages of docs/guides as they are.

A page has `<!-- code: PATH -->` above a block of code, which `make generate` writes from the file.
A block of `text` right after it is what the program prints: tests/integration/guides runs each
program and compares.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "guides"
LANGUAGES = {".py": "python", ".mjs": "js", ".sh": "sh"}
_CODE = re.compile(
    r"<!-- code: (?P<path>\S+) -->\n(?:```\w*\n(?:(?!```).*\n)*```\n)?"
    r"(?:\n```text\n(?P<output>(?:(?!```).*\n)*)```\n)?"
)


@dataclass(frozen=True, slots=True)
class Program:
    """A file that a page shows, and what it prints by that page; None if it does not say."""

    page: str
    path: Path
    output: str | None


def fill_page(text: str, root: Path = ROOT) -> str:
    """Return the page with the present content of each file that it names."""

    def show(match: re.Match[str]) -> str:
        path = root / match["path"]
        code = f"```{LANGUAGES[path.suffix]}\n{path.read_text().rstrip()}\n```\n"
        output = f"\n```text\n{match['output']}```\n" if match["output"] else ""
        return f"<!-- code: {match['path']} -->\n{code}{output}"

    return _CODE.sub(show, text)


def list_programs() -> Iterator[Program]:
    """Yield every program that a page shows."""
    for page in sorted(PAGES.glob("*.md")):
        for match in _CODE.finditer(page.read_text()):
            yield Program(page.stem, ROOT / match["path"], match["output"])
