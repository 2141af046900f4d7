"""Values of the chart are described by the comments above them."""

import pytest
from tools.chart import read_values

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
