"""Guardrails: lists of models and providers, and the rules that hold for a key (contract §9.1)."""

from typing import Any

import pytest

from gateway_core.accounts.guardrails import (
    NO_RULES,
    CacheScope,
    Guardrail,
    Policies,
    Policy,
    read_guardrail,
    read_names,
    read_rules,
    select_guardrails,
)
from gateway_core.api.errors import Forbidden
from gateway_core.api.limits import MOST_GUARDRAILS, list_subjects
from gateway_core.billing.counters import Budget
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes


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
def test_list_matches_names_and_prefixes(
    entries: list[str], named: tuple[str, ...], others: tuple[str, ...]
) -> None:
    names = read_names(entries)
    assert names is not None
    assert [name for name in named if name not in names] == []
    assert [name for name in others if name in names] == []


def test_missing_list_admits_all_and_an_empty_one_nothing() -> None:
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
def test_model_must_pass_all_lists_of_a_guardrail(spec: dict[str, Any], admitted: bool) -> None:
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


def test_guardrail_holds_for_its_keys_of_its_own_account() -> None:
    mine = guardrail("grd-b", "demo", "key-a", "key-b")
    first = guardrail("grd-a", "demo", "key-a")
    unused = guardrail("grd-d", "demo")
    foreign = guardrail("grd-c", "guest", "key-a")
    every = (mine, first, foreign, unused)
    assert select_guardrails(every, account="demo", key_name="key-a") == (first, mine)
    assert select_guardrails(every, account="demo", key_name="key-b") == (mine,)
    assert select_guardrails(every, account="guest", key_name="key-b") == ()


KEYS, GUARDRAILS = "gatewaykeys", "gatewayguardrails"


class Rulebook:
    """Policies over tables that follow a record."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.keys = FakeInformer(self.kube, KEYS, lambda obj: read_rules(obj["spec"]))
        self.guardrails = FakeInformer(self.kube, GUARDRAILS, read_guardrail)
        self.reads = 0
        self.policies = Policies(self.keys, self.guardrails, self._read)

    def _read(self, guardrail: Guardrail) -> Guardrail:
        self.reads += 1
        return guardrail

    def put(self, name: str, *keys: str, account: str = "demo", **spec: Any) -> None:
        base = {"accountName": account, "displayName": name[4:], "keyNames": list(keys)}
        self.kube.put(GUARDRAILS, {"metadata": {"name": name}, "spec": {**base, **spec}})

    def put_key(self, name: str, **spec: Any) -> None:
        self.kube.put(KEYS, {"metadata": {"name": name}, "spec": spec})

    def find(self, key: str = "key-a", account: str = "demo") -> Policy:
        return self.policies.find(key, account, self.keys.get(key) or NO_RULES)


@pytest.fixture
def book() -> Rulebook:
    return Rulebook()


def test_key_alone_is_not_restricted(book: Rulebook) -> None:
    policy = book.find()
    policy.check("sim", "m")
    assert (policy.budgets, policy.limited, policy.closed) == ((), False, False)
    assert policy.subjects == ("key/key-a",)


def test_restrictions_of_key_and_guardrails_intersect(book: Rulebook) -> None:
    book.put_key("key-a", allowedModels=["a*", "b"])
    book.put("grd-one", "key-a", allowedModels=["a*"], deniedModels=["ab"])
    book.put("grd-two", "key-a", allowedProviders=["sim"])
    policy = book.find()
    policy.check("sim", "aa")
    for service, model, title in [
        ("sim", "b", 'guardrail "one"'),
        ("sim", "ab", 'guardrail "one"'),
        ("sim", "c", "this key"),
        ("other", "aa", 'guardrail "two"'),
    ]:
        with pytest.raises(Forbidden) as refused:
            policy.check(service, model)
        assert refused.value.code == "model_not_allowed"
        assert refused.value.message == f"Model {model} is not allowed for {title}."


def test_budgets_are_those_with_a_limit_or_a_rate(book: Rulebook) -> None:
    book.put_key("key-a", limit={"micros": 5, "window": "1h"})
    book.put("grd-fast", "key-a", "key-b", requestsPerMinute=9)
    book.put("grd-free", "key-a", deniedModels=["x"])
    assert not book.find("key-b").limited
    policy = book.find()
    assert policy.budgets == (
        Budget("key/key-a", 5, "1h"),
        Budget("guardrail/grd-fast", requests_per_minute=9),
    )
    assert policy.limited
    assert policy.guardrail_names == ("grd-fast", "grd-free")
    assert policy.name_subject("guardrail/grd-fast") == 'guardrail "fast"'


def test_subjects_are_those_of_the_record(book: Rulebook) -> None:
    book.put("grd-b", "key-a")
    book.put("grd-a", "key-a")
    policy = book.find()
    request = {"keyName": policy.key_name, "guardrailNames": list(policy.guardrail_names)}
    assert policy.subjects == list_subjects(request)


def test_cache_is_of_the_key_before_its_guardrails(book: Rulebook) -> None:
    assert book.find().cache is None
    book.put("grd-b", "key-a", cacheSeconds=20)
    book.put("grd-a", "key-a", cacheSeconds=10)
    book.put("grd-theirs", "key-a", account="guest", cacheSeconds=30)
    assert book.find().cache == CacheScope("guardrail/grd-a", 10)
    book.put_key("key-a", cacheSeconds=40)
    assert book.find().cache == CacheScope("key/key-a", 40)


def test_foreign_guardrail_does_not_hold(book: Rulebook) -> None:
    book.put("grd-theirs", "key-a", account="guest", allowedModels=[], requestsPerMinute=1)
    policy = book.find()
    policy.check("sim", "m")
    assert policy.guardrail_names == ()
    assert policy.budgets == ()


def test_most_guardrails_of_a_key_all_hold(book: Rulebook) -> None:
    book.put("grd-theirs", "key-a", account="guest")
    for number in range(MOST_GUARDRAILS):
        book.put(f"grd-{number}", "key-a", requestsPerMinute=number + 1)
    policy = book.find()
    policy.check("sim", "m")
    assert len(policy.budgets) == len(policy.guardrail_names) == MOST_GUARDRAILS


def test_ninth_guardrail_closes_the_key_until_one_is_removed(book: Rulebook) -> None:
    for number in range(MOST_GUARDRAILS + 1):
        book.put(f"grd-{number}", "key-a")
    with pytest.raises(Forbidden, match="more than 8 guardrails") as refused:
        book.find().check("sim", "m")
    assert refused.value.code == "model_not_allowed"
    book.find("key-b").check("sim", "m")
    book.kube.remove(GUARDRAILS, "grd-4")
    book.find().check("sim", "m")


def test_changes_of_keys_and_guardrails_are_followed(book: Rulebook) -> None:
    book.put("grd-a", "key-a", requestsPerMinute=1)
    assert book.find().budgets == (Budget("guardrail/grd-a", requests_per_minute=1),)
    book.put("grd-a", "key-a", "key-b", requestsPerMinute=2)
    assert book.find().budgets == (Budget("guardrail/grd-a", requests_per_minute=2),)
    assert book.find("key-b").guardrail_names == ("grd-a",)
    book.put("grd-a", "key-b", requestsPerMinute=2)
    assert book.find().budgets == ()
    book.put_key("key-a", requestsPerMinute=3)
    assert book.find().budgets == (Budget("key/key-a", requests_per_minute=3),)
    book.kube.remove(GUARDRAILS, "grd-a")
    assert book.find("key-b").guardrail_names == ()


def test_guardrails_that_are_there_before_are_known() -> None:
    book = Rulebook()
    book.put("grd-a", "key-a")
    policies = Policies(book.keys, book.guardrails, lambda guardrail: guardrail)
    assert policies.find("key-a", "demo", NO_RULES).guardrail_names == ("grd-a",)


def test_key_name_of_two_accounts_has_a_policy_in_each(book: Rulebook) -> None:
    book.put("grd-a", "key-a")
    book.put("grd-b", "key-a", account="guest")
    assert book.find("key-a", "demo").guardrail_names == ("grd-a",)
    assert book.find("key-a", "guest").guardrail_names == ("grd-b",)


def test_policy_is_kept_while_its_guardrails_do_not_change(book: Rulebook) -> None:
    book.put_key("key-a", requestsPerMinute=3)
    for number in range(100):
        book.put(f"grd-{number}", f"key-{number}")
    first, reads = book.find(), book.reads
    assert book.find() is first
    book.put("grd-5", "key-5", "key-6")
    assert book.find() is first, "what concerns others does not concern it"
    assert book.reads == reads + 1
