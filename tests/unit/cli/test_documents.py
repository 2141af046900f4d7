"""The documents for scripts: their fields and their form are golden."""

import json
from pathlib import Path

import pytest
import yaml

from gateway_cli.admin.documents import (
    describe_account,
    describe_guardrail,
    describe_key,
    describe_model,
    describe_provider,
    describe_task,
    describe_user,
)
from gateway_cli.admin.usage import group_rows, list_rows, sum_earlier
from gateway_cli.output import Column, RowPrinter, print_list, print_one

GOLDEN = Path(__file__).with_name("documents")
DESCRIBED = {
    "account": describe_account,
    "user": describe_user,
    "key": describe_key,
    "guardrail": describe_guardrail,
    "task": describe_task,
    "model": describe_model,
    "provider": describe_provider,
}


@pytest.mark.parametrize("noun", DESCRIBED)
@pytest.mark.parametrize("case", ["full", "bare"])
def test_document_equals_the_golden_one(noun: str, case: str) -> None:
    """`full` has every field set; `bare` is the least that the schema takes."""
    obj = yaml.safe_load((GOLDEN / f"{noun}-{case}.in.yaml").read_text())
    expected = json.loads((GOLDEN / f"{noun}-{case}.json").read_text())
    made = DESCRIBED[noun](obj)
    assert made == expected
    assert list(made) == list(expected)


@pytest.mark.parametrize("noun", DESCRIBED)
def test_every_field_is_always_there(noun: str) -> None:
    full, bare = (
        json.loads((GOLDEN / f"{noun}-{case}.json").read_text()) for case in ("full", "bare")
    )
    assert list(full) == list(bare)


USAGE = yaml.safe_load((GOLDEN / "usage.in.yaml").read_text())


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (["day"], [("2026-11-20", 3, "0.30"), ("2026-11-21", 4, "0.35")]),
        (["key"], [(None, 1, "0.05"), ("key-a", 4, "0.40"), ("key-b", 2, "0.20")]),
        (["operation"], [(None, 1, "0.05"), ("sim/reference_to_video", 6, "0.60")]),
    ],
)
def test_usage_is_grouped_and_nothing_is_lost(by, expected) -> None:
    rows = [row for obj in USAGE for row in list_rows(obj)] if USAGE else []
    grouped = group_rows(rows, by)
    assert [(row[by[0]], row["requests"], row["cost"]) for row in grouped] == expected


def test_usage_by_two_names_has_a_row_for_each_pair() -> None:
    rows = [row for obj in USAGE for row in list_rows(obj)]
    grouped = group_rows(rows, ["day", "key"])
    assert [(row["day"], row["key"], row["requests"]) for row in grouped] == [
        ("2026-11-20", "key-a", 3),
        ("2026-11-21", None, 1),
        ("2026-11-21", "key-a", 1),
        ("2026-11-21", "key-b", 2),
    ]


def test_days_without_rows_are_one_sum() -> None:
    assert sum_earlier(USAGE) == {
        "through_day": "2026-11-12",
        "requests": 9,
        "failed": 2,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_micros": 1_250_000,
        "cost": "1.25",
    }
    assert sum_earlier(USAGE[:1]) is None


COLUMNS = (Column("NAME", "name"), Column("COST", "cost", right=True))


def test_table_wraps_no_cell_and_reads_no_markup(capsys) -> None:
    documents = [{"name": "[red]" + "x" * 300, "cost": "1.25"}, {"name": "y", "cost": None}]
    print_list(documents, COLUMNS, "table", noun="things", footer={"name": None, "cost": "1.25"})
    head, first, second, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "COST"]
    assert first.split() == ["[red]" + "x" * 300, "1.25"]
    assert second.split() == ["y"]
    assert total.split() == ["1.25"]


def test_empty_list_is_a_document_or_a_note(capsys) -> None:
    print_list([], COLUMNS, "json", noun="things")
    assert json.loads(capsys.readouterr().out) == {"items": []}
    print_list([], COLUMNS, "table", noun="things")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no things\n")


def test_json_and_yaml_hold_the_same(capsys) -> None:
    document = {"name": "[bold]ä", "cost": None, "keys": ["a"], "paid": True}
    print_one(document, (), "json")
    assert json.loads(capsys.readouterr().out) == document
    print_one(document, (), "yaml")
    assert yaml.safe_load(capsys.readouterr().out) == document


def test_description_omits_unknown_fields(capsys) -> None:
    print_one({"name": "a", "cost": None}, COLUMNS, "table")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["NAME", "a"]]


def test_rows_that_come_later_keep_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    printer = RowPrinter((Column("NAME", "name"), Column("N", "n", right=True)), "table")
    printer.print([{"name": "longest", "n": 1}])
    printer.print([{"name": "a", "n": 2}])
    assert capsys.readouterr().out.splitlines() == ["NAME     N", "longest  1", "a        2"]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_rows_for_scripts_are_documents_of_their_own(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = RowPrinter((Column("NAME", "name"),), output)  # type: ignore[arg-type]
    printer.print([{"name": "ä"}, {"name": "b"}])
    printer.print([{"name": "c"}])
    out = capsys.readouterr().out
    documents = (
        [json.loads(line) for line in out.splitlines()]
        if output == "json"
        else list(yaml.safe_load_all(out))
    )
    assert [document["name"] for document in documents] == ["ä", "b", "c"]
