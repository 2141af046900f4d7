"""Values of the chart are described by the comments above them."""

import re
from pathlib import Path

import pytest
from tools.chart import read_values

CHART = Path(__file__).resolve().parents[3] / "charts" / "model-gateway"

TEXT = """\
a:
  # -- The first
  # value.
  # @schema {"minimum": 1}
  first: 1
  image:
    # -- The name.
    name: ""
# -- All at once.
whole: {x: 1}
"""


def test_value_has_the_comment_right_above_it_and_no_other():
    values = {".".join(value.path): value for value in read_values(TEXT)}
    assert {path: value.text for path, value in values.items()} == {
        "a.first": "The first value.",
        "a.image.name": "The name.",
        "whole": "All at once.",
    }
    assert values["a.first"].schema == {"minimum": 1}
    assert values["whole"].default == {"x": 1}


def test_value_without_a_description_is_named():
    with pytest.raises(ValueError, match=r"a\.other has no description"):
        read_values(TEXT.replace("  image:", "  other: 3\n  image:"))


def test_each_row_of_the_readme_has_the_comment_of_its_own_value():
    commented, comment = [], []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if begun := re.fullmatch(r" *# -- (.*)", line):
            comment = [begun[1]]
        elif comment and (more := re.fullmatch(r" *# (?!@schema)(.*)", line)):
            comment.append(more[1])
        elif comment and (named := re.match(r" *([^\s#:]+):", line)):
            commented.append((named[1], " ".join(comment)))
            comment = []
    table = (CHART / "README.md").read_text().partition("## Values")[2]
    rows = re.findall(r"^\| `([^`]+)` \| (?:`.*?`) \| (.*) \|$", table, re.MULTILINE)
    shown = [(path.rpartition(".")[2], text.replace("\\|", "|")) for path, text in rows]
    assert len(commented) > 200
    assert shown == commented
