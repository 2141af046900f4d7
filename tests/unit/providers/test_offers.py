"""Names in lists of keys and guardrails that nothing has."""

from typing import Any

import pytest

from gateway_core.providers.offers import read_offer

OFFER = read_offer([("veo-3", "google"), ("sim-q4", "sim")])
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no lists": ({}, ""),
    "absent and empty lists": ({"allowedModels": None, "deniedModels": []}, ""),
    "known names": ({"allowedModels": ["veo-3", "sim-*", "*"], "allowedProviders": ["sim"]}, ""),
    "one model": (
        {"allowedModels": ["veo-3", "veo-4"]},
        "allowedModels: veo-4 is not a model of this gateway",
    ),
    "a service is no model": (
        {"denied_models": ["sim"]},
        "denied_models: sim is not a model of this gateway",
    ),
    "a model is no service": (
        {"Allowed providers": ["veo-3"]},
        "Allowed providers: veo-3 is not a service of this gateway",
    ),
    "beginnings, in two lists": (
        {"allowedModels": ["a*", "b*"], "deniedProviders": ["c*"]},
        "allowedModels: a*, b* are not models of this gateway;"
        " deniedProviders: c* is not a service of this gateway",
    ),
    "many": (
        {"allowedModels": [f"m{n}" for n in range(9)]},
        "allowedModels: m0, m1, m2, m3, m4 and 4 more are not models of this gateway",
    ),
    "other case": (
        {"allowedModels": ["VEO-3"]},
        "allowedModels: VEO-3 is not a model of this gateway",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_unknown_names_are_told_by_list(case: str) -> None:
    lists, expected = CASES[case]
    assert OFFER.find_unknown(lists) == expected
