"""The documents as a site: pages of README.md, docs/ and others, in a navigation by audience.

`make site` writes `.site/html`, for any web server of static files. The pages lie as in the
repository, so links between them are the same on GitHub and here.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".site"
COPIED = ("*.md", "LICENSE", "docs/**/*", "examples/**/*", "charts/*/README.md")
CONFIG: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("mkdocs.yml").read_text())
Entries = list[Any]
"""Entries of a section: names of pages, patterns, and groups, which map a title to entries."""
NAVIGATION: dict[str, Entries] = {
    section: entries for entry in CONFIG["nav"] for section, entries in entry.items()
}
LINKED_ONLY = ("docs/decisions/[0-9]*.md", "examples/**/README.md")
"""Decision records and READMEs of examples are reached from other pages."""
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\ssrc=\"?([^\"\s>]+)"
    r"|<link\b[^>]*\brel=\"?(?:stylesheet|icon|preload|preconnect)[^>]*\shref=\"?([^\"\s>]+)"
    r"|@import\s+(?:url\()?[\"']?([^\"')]+)"
)
_LINK = re.compile(r"<(?:a\b[^>]*\shref|img\b[^>]*\ssrc)=(?:\"([^\"]*)\"|([^\s>]+))")


def list_pages(root: Path = ROOT) -> dict[str, Entries]:
    """Return the pages of each section, in groups where it has them, in the navigation's order.

    Raises:
        ValueError: a page is in no section, or a name without a wildcard has no page.
    """
    named = {entry for entry in walk(NAVIGATION.values()) if "*" not in entry}
    found = {section: _expand(root, entries, named) for section, entries in NAVIGATION.items()}
    placed = set(walk(found.values()))
    linked = {page for pattern in LINKED_ONLY for page in _find(root, pattern)}
    pages = {name for pattern in COPIED if pattern != "LICENSE" for name in _find(root, pattern)}
    if lost := sorted({page for page in pages if page.endswith(".md")} - placed - linked):
        raise ValueError(f"pages without a place in tools/mkdocs.yml: {', '.join(lost)}")
    return found


def _expand(root: Path, entries: Entries, named: set[str]) -> Entries:
    """Return the entries with pages in place of patterns, which stand for pages not `named`."""
    pages: Entries = []
    for entry in entries:
        if isinstance(entry, dict):
            pages += [{title: _expand(root, inner, named)} for title, inner in entry.items()]
        else:
            pages += [page for page in _find(root, entry) if page == entry or page not in named]
    return pages


def walk(sections: Iterable[Entries]) -> Iterator[str]:
    """Yield the pages or patterns of all entries, those in groups too."""
    for entries in sections:
        for entry in entries:
            if isinstance(entry, dict):
                yield from walk(entry.values())
            else:
                yield entry


def _find(root: Path, pattern: str) -> list[str]:
    paths = sorted(path for path in root.glob(pattern) if path.is_file())
    if not paths and "*" not in pattern:
        raise ValueError(f"tools/mkdocs.yml names {pattern}, which does not exist")
    return [str(path.relative_to(root)) for path in paths if not path.name.endswith(".in.md")]


def build(folder: Path = FOLDER) -> Path:
    """Build the site below `folder`, which is emptied first; return the folder of its pages.

    Raises:
        ValueError: a page has no place, a link leads nowhere, or a page loads from another site.
        CalledProcessError: Zensical found a problem and has printed it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for pattern in COPIED:
        for name in _find(ROOT, pattern):
            target = folder / "pages" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    shutil.copyfile(Path(__file__).with_name("site.css"), folder / "pages" / "site.css")
    sections = list_pages()
    navigation = [{section: pages} for section, pages in sections.items()]
    config = folder / "mkdocs.yml"
    config.write_text(yaml.safe_dump({**CONFIG, "nav": navigation}, sort_keys=False))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=folder)  # noqa: S603
    html = folder / "html"
    if problems := find_problems(html):
        raise ValueError("\n".join(problems))
    return html


def find_problems(html: Path) -> list[str]:
    """Return links and images without a file, and what pages would load from other sites.

    Zensical itself finds links to pages and headings that do not exist.
    """
    problems = []
    for path in html.rglob("*.html"):
        shown, text = path.relative_to(html), path.read_text()
        loaded = _take(_LOADED, text)
        problems += [f"{shown} loads {address}" for address in loaded if urlsplit(address).netloc]
        # its links are relative to the site's root, whatever the address that was asked for
        for address in _take(_LINK, text) if path.name != "404.html" else ():
            link = urlsplit(address)
            target = path.parent / unquote(link.path)
            target = target / "index.html" if target.is_dir() else target
            if link.path and not (link.scheme or link.netloc or target.is_file()):
                problems.append(f"{shown} names {address}, which does not exist")
    return problems


def _take(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the one group that took part in each match."""
    return [next(filter(None, match.groups()), "") for match in pattern.finditer(text)]


if __name__ == "__main__":
    try:
        print(build())
    except subprocess.CalledProcessError as problem:
        sys.stderr.write(problem.stdout.decode())
        sys.exit("Zensical found problems")
    except ValueError as problem:
        sys.exit(str(problem))
