"""Pages of guides hold the code of the files that they name."""

from pathlib import Path

import pytest
from tools.guides import PAGES, ROOT, fill_page, list_programs


def test_block_is_written_from_its_file_and_stays(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    page = "Text\n\n<!-- code: a.py -->\n\nMore\n"
    filled = fill_page(page, tmp_path)
    assert filled == "Text\n\n<!-- code: a.py -->\n```python\nprint(1)\n```\n\nMore\n"
    assert fill_page(filled, tmp_path) == filled
    (tmp_path / "a.py").write_text("print(2)\n")
    assert fill_page(filled, tmp_path) == filled.replace("1", "2")


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_pages_have_the_present_code(page: Path) -> None:
    assert fill_page(page.read_text()) == page.read_text()


def test_every_example_is_shown() -> None:
    shown = {each.path for each in list_programs()}
    folder = ROOT / "examples" / "guides"
    assert shown == {path for path in folder.rglob("*") if path.is_file()}
