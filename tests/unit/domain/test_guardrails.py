"""What lists of models and providers let through, and which guardrails hold for a key (§9.1)."""

from typing import Any

import pytest

from gateway_core.accounts.guardrails import (
    NO_RULES,
    read_guardrail,
    read_names,
    read_rules,
    select_guardrails,
)


@pytest.mark.parametrize(
    ("entries", "named", "others"),
    [
        ([], (), ("", "a", "*")),
        (["a"], ("a",), ("", "A", "ab", "*", "a*")),
        (["a*"], ("a", "ab", "a/b:c", "a*"), ("", "ba", "A")),
        (["*"], ("", "a", "*"), ()),
        (["a*b"], ("a*b",), ("ab", "axb", "a")),
        (["a", "b*", "c/*"], ("a", "b", "bb", "c/d"), ("aa", "c", "cd")),
        (["**"], ("*", "*a"), ("", "a")),
    ],
)
def test_a_list_names_exactly_or_by_beginnings(
    entries: list[str], named: tuple[str, ...], others: tuple[str, ...]
) -> None:
    names = read_names(entries)
    assert names is not None
    assert [name for name in named if name not in names] == []
    assert [name for name in others if name in names] == []


def test_no_list_is_no_empty_list() -> None:
    assert read_names(None) is None
    assert read_rules({}).admit("sim", "m")
    assert not read_rules({"allowedModels": []}).admit("sim", "m")
    assert not read_rules({"allowedProviders": []}).admit("sim", "m")
    assert read_rules({"deniedModels": [], "deniedProviders": []}).admit("sim", "m")


@pytest.mark.parametrize(
    ("spec", "admitted"),
    [
        ({"allowedModels": ["sim-*"]}, True),
        ({"allowedModels": ["sim"]}, False),
        ({"deniedModels": ["sim-q4"]}, False),
        ({"deniedModels": ["sim-q5"]}, True),
        ({"allowedModels": ["sim-*"], "deniedModels": ["sim-q4"]}, False),
        ({"allowedModels": ["*"], "deniedModels": ["*"]}, False),
        ({"allowedProviders": ["acme"]}, True),
        ({"allowedProviders": ["ac*"], "allowedModels": ["other"]}, False),
        ({"allowedProviders": ["other"], "allowedModels": ["sim-q4"]}, False),
        ({"deniedProviders": ["a*"]}, False),
        ({"deniedProviders": ["sim-q4"]}, True),
        ({"allowedModels": ["acme"]}, False),
    ],
)
def test_all_lists_of_one_must_let_a_model_through(spec: dict[str, Any], admitted: bool) -> None:
    assert read_rules(spec).admit("acme", "sim-q4") is admitted


def test_limits_are_read() -> None:
    rules = read_rules({"limit": {"micros": 5, "window": "weekly"}, "requestsPerMinute": 7})
    assert (rules.limit, rules.window, rules.requests_per_minute) == (5, "weekly", 7)
    assert read_rules({"limit": {"micros": 0, "window": "1h"}}).limit == 0


def test_keys_without_restrictions_share_one_entry() -> None:
    assert read_rules({"accountName": "demo", "displayName": "x"}) is NO_RULES


def guardrail(name: str, account: str, *keys: str, **spec: Any) -> Any:
    named = {"accountName": account, "displayName": name.upper(), "keyNames": list(keys)}
    return read_guardrail({"metadata": {"name": name}, "spec": {**named, **spec}})


def test_a_guardrail_holds_for_its_keys_of_its_own_account() -> None:
    mine = guardrail("grd-b", "demo", "key-a", "key-b")
    first = guardrail("grd-a", "demo", "key-a")
    foreign = guardrail("grd-c", "guest", "key-a")
    every = (mine, first, foreign)
    assert select_guardrails(every, account="demo", key_name="key-a") == (first, mine)
    assert select_guardrails(every, account="demo", key_name="key-b") == (mine,)
    assert select_guardrails(every, account="guest", key_name="key-b") == ()


def test_a_guardrail_without_keys_holds_for_none() -> None:
    obj = {"metadata": {"name": "grd-a"}, "spec": {"accountName": "demo", "displayName": "A"}}
    assert select_guardrails([read_guardrail(obj)], account="demo", key_name="key-a") == ()
