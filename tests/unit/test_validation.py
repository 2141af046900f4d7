"""Problems of values from clients: all of known fields, and a bounded number of unknown ones."""

from typing import Annotated

import pytest
from pydantic import ConfigDict, Field

from gateway_core.api.errors import InvalidRequest
from gateway_core.validation import MOST_NAME, MOST_PROBLEMS, MOST_UNKNOWN, Request, validate


class Body(Request):
    """A body with an alias."""

    model_config = ConfigDict(populate_by_name=True)

    count: int
    shown: Annotated[str, Field(alias="shownName")] = ""
    labels: Annotated[dict[str, str], Field(default_factory=dict)]


def refuse(values: dict[str, object]) -> dict[str, list[str]]:
    with pytest.raises(InvalidRequest) as caught:
        validate(Body, values)
    return dict(caught.value.errors or {})


def test_unknown_fields_beyond_a_bound_are_not_named_and_hide_no_known_one() -> None:
    unknown = {f"{number}" + "x" * 1000: number for number in range(100_000)}
    found = refuse({**unknown, "shownName": 1, "count": "many"})

    assert found["count"] == ["must be an integer"]
    assert found["shownName"] == ["must be a string"]
    assert len(found) == MOST_UNKNOWN + 2
    assert max(map(len, found)) == MOST_NAME + 1


def test_unknown_fields_do_not_displace_the_values_of_known_ones() -> None:
    unknown = {f"x{number}": number for number in range(MOST_UNKNOWN)}
    found = refuse({**unknown, "count": 5, "shown": "a"})

    assert set(found) == set(unknown)


def test_problems_of_one_field_are_bounded_in_number_and_length() -> None:
    found = refuse({"count": 1, "labels": {f"{n}" + "y" * 5000: n for n in range(1000)}})

    assert len(found["labels"]) == MOST_PROBLEMS
    assert max(map(len, found["labels"])) < MOST_NAME + 50
