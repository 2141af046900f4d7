"""The generated reference: types, fields and descriptions as a reader sees them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import BaseSettings
from tools.reference import errors, rest
from tools.reference.settings import describe_fields
from tools.reference.tables import build_table, list_fields, show_type


class Described(BaseSettings):
    """Settings with a text for each field."""

    first: int = 1
    """What it
    is for."""


class Undescribed(BaseSettings):
    """Settings without one."""

    first: int = 1


def test_cells_stay_in_their_row() -> None:
    table = build_table(("a", "b"), [("x | y", "two\nlines")])
    assert table.splitlines()[-1] == "| x \\| y | two lines |"


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string", "maxLength": 3}, "string, ≤ 3 characters"),
        ({"type": "array", "items": {"type": "integer", "minimum": 1}}, "array of integer, ≥ 1"),
        ({"enum": ["a", None]}, "`a`, `null`"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "map of string"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"const": True}, "`true`"),
        ({"$ref": "#/components/schemas/Task"}, "Task"),
    ],
)
def test_type_has_its_bounds(schema: dict[str, Any], shown: str) -> None:
    assert show_type(schema) == shown


def test_fields_below_arrays_and_maps_have_paths() -> None:
    inner = {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}}
    schema = {
        "properties": {
            "a": {"type": "array", "items": inner},
            "m": {"type": "object", "additionalProperties": inner},
        }
    }
    found = [(path, required) for path, _, required in list_fields(schema)]
    assert found == [("a", False), ("a[].b", True), ("m", False), ("m.<name>.b", True)]


def test_description_of_a_setting_is_the_text_below_it() -> None:
    assert describe_fields(Described) == {"first": "What it is for."}
    with pytest.raises(ValueError, match=r"Undescribed\.first has no description"):
        describe_fields(Undescribed)


def test_codes_are_found_where_errors_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "raising.py").write_text(
        'raise NotFound("gone", code="model_not_found")\n'
        'raise OAuthError("invalid_grant", "used")\n'
        'raise OAuthError("server_error", "late", status=503)\n'
        'class UploadConflict(Conflict):\n    code = "upload_state_conflict"\n'
        'class Other(Exception):\n    code = "other"\n'
    )
    monkeypatch.setattr(errors, "ROOT", tmp_path)
    codes = [(404, "model_not_found"), (409, "upload_state_conflict")]
    assert list(errors.list_codes()) == codes
    assert list(errors.list_oauth_codes()) == [(400, "invalid_grant"), (503, "server_error")]


def test_page_has_codes_of_lost_objects_and_no_section_of_the_contract() -> None:
    page = errors.build_page()
    assert "| 404 | `upload_not_found` |" in page
    assert "| 413 | `storage_limit_exceeded` |" in page
    assert "§" not in page


def test_document_has_each_surface() -> None:
    paths = rest.describe_api()["paths"]
    for path in ("/v1/chat/completions", "/v1/files", "/api/v1/me", "/api/v1/management/keys"):
        assert path in paths, sorted(paths)
