"""Links, anchors and decision records of the documents."""

import re
from pathlib import Path

import pytest
from tools.site import list_pages, walk

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def name_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def list_anchors(document: Path) -> set[str]:
    """The anchors that GitHub derives from the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_path)
def test_links_lead_to_existing_files_and_headings(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), target
        assert not anchor or anchor in list_anchors(path), f"{target}#{anchor}"


def test_every_page_has_a_place_in_the_navigation() -> None:
    """`list_pages` raises for a page that tools/mkdocs.yml does not name."""
    pages = list(walk(list_pages().values()))
    assert len(pages) == len(set(pages)) > 30


@pytest.mark.parametrize("decision", DECISIONS, ids=name_path)
def test_decision_has_three_sections_in_at_most_300_words(decision: Path) -> None:
    text = decision.read_text()
    assert re.match(rf"# {int(decision.name[:4])}\. \w", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 300


def test_index_lists_every_decision_with_its_title() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \|$", index, re.MULTILINE)
    titles = [path.read_text().splitlines()[0] for path in DECISIONS]
    assert [f"# {number}. {title}" for number, title, _ in rows] == titles
    assert [target for *_, target in rows] == [path.name for path in DECISIONS]


def test_glossary_is_alphabetical_and_names_existing_rooms() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| (.+?) \| .+ \| `(\w+) ?(\w*)` \|$", glossary, re.MULTILINE)
    terms = [term.lower() for term, *_ in rows]
    assert len(rows) == glossary.count("\n| ") - 1
    assert terms == sorted(terms)
    for term, process, room in rows:
        assert (ROOT / process / f"gateway_{process}" / room).is_dir(), term


def test_architecture_names_existing_paths() -> None:
    """Paths are short: `core/billing` is `core/gateway_core/billing`."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = "core|web|apiserver|mcpserver|operator|cli|simulator"
    folders = f"{rooms}|tests|docs|charts|tools|crds|examples"
    for path in re.findall(rf"`((?:{folders})(?:/[\w.-]+)+)`", text):
        room, _, rest = path.partition("/")
        package = ROOT / room / f"gateway_{room}"
        assert (package / rest if package.is_dir() else ROOT / path).exists(), path


def test_node_programs_of_the_guides_have_one_set_up() -> None:
    """A second `npm install --no-save` of other packages would remove those of the first."""
    guides = [path.read_text() for path in (ROOT / "docs/guides").glob("*.md")]
    commands = {line for text in guides for line in re.findall(r"npm install .+", text)}
    assert commands == {"npm install --no-save openai @google/genai"}


def test_readme_leads_to_every_page_of_operations() -> None:
    text = (ROOT / "README.md").read_text()
    for page in (ROOT / "docs/operations").glob("*.md"):
        assert f"(docs/operations/{page.name})" in text, page.name
