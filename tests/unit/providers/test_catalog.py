"""The catalog: which objects serve which path, and what is wrong with the others."""

from typing import Any

import pytest

from gateway_core.api.conditions import Reason
from gateway_core.api.model import GatewayModel, KeyedRoute
from gateway_core.providers.catalog import build_catalog, check_model_object

RESOLUTIONS = ("540p", "720p", "1080p", "2k", "4k")


def make(name: str = "sim-q4", created: str = "2026-11-21T10:00:00Z", **spec: Any) -> GatewayModel:
    base = {
        "modelId": "sim-q4",
        "service": "sim",
        "action": "reference_to_video",
        "routes": [{"name": "main", "providerName": "simulated", "upstreamModel": "q4"}],
        "prices": [{"perCallMicros": 1}],
    }
    metadata = {"name": name, "creationTimestamp": created}
    return GatewayModel.model_validate({"metadata": metadata, "spec": {**base, **spec}})


def test_model_is_found_at_its_path() -> None:
    catalog, problems = build_catalog([make(deadlineSeconds=60)])
    assert problems == {}
    model = catalog.find_model("sim", "reference_to_video", "sim-q4")
    assert model is not None
    assert model.deadline_seconds == 60
    assert model.routes[0].provider_name == "simulated"
    operation = catalog.find_operation("sim", "reference_to_video")
    assert operation is model.operation


@pytest.mark.parametrize(("upstream_model", "is_known"), [("q4", True), ("q5", False)])
def test_keyed_route_counts_while_the_spec_has_it(upstream_model: str, is_known: bool) -> None:
    """The status is of an older spec where a route was changed since."""
    obj = make()
    obj.status.keyed_route = KeyedRoute(provider_name="simulated", upstream_model=upstream_model)
    model = build_catalog([obj])[0].find_model("sim", "reference_to_video", "sim-q4")
    assert model is not None
    assert model.keyed_route == (obj.status.keyed_route if is_known else None)


@pytest.mark.parametrize(
    ("service", "action", "model_id"),
    [
        ("other", "reference_to_video", "sim-q4"),
        ("sim", "text_to_video", "sim-q4"),
        ("sim", "reference_to_video", "sim-q5"),
        ("sim", "reference_to_video", "SIM-Q4"),
    ],
)
def test_model_is_not_found_at_another_path(service: str, action: str, model_id: str) -> None:
    catalog, _ = build_catalog([make()])
    assert catalog.find_model(service, action, model_id) is None


def test_path_without_models_is_no_path() -> None:
    catalog, _ = build_catalog([make(disabled=True)])
    assert catalog.find_operation("sim", "reference_to_video") is None
    assert build_catalog([])[0].find_operation("sim", "reference_to_video") is None


def test_path_serves_many_models() -> None:
    catalog, problems = build_catalog([make(), make("b", modelId="b"), make("c", service="c")])
    assert problems == {}
    assert set(catalog.models["sim", "reference_to_video"]) == {"sim-q4", "b"}
    assert set(catalog.models["c", "reference_to_video"]) == {"sim-q4"}


@pytest.mark.parametrize("order", [1, -1])
def test_older_of_two_models_with_one_id_serves(order: int) -> None:
    older = make("z-older", "2026-11-21T10:00:00Z", deadlineSeconds=1)
    newer = make("a-newer", "2026-11-21T10:00:01Z", deadlineSeconds=2)
    catalog, problems = build_catalog([older, newer][::order])
    model = catalog.find_model("sim", "reference_to_video", "sim-q4")
    assert model is not None
    assert model.deadline_seconds == 1
    assert set(problems) == {"a-newer"}
    assert problems["a-newer"].reason is Reason.DUPLICATE_MODEL
    assert "z-older" in problems["a-newer"].message


def test_first_name_serves_of_models_made_in_one_second() -> None:
    _, problems = build_catalog([make("b"), make("a")])
    assert set(problems) == {"b"}


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        ({"disabled": True}, Reason.DISABLED, "spec.disabled"),
        ({"action": "text_to_video"}, Reason.UNKNOWN_ACTION, "one of reference_to_video"),
        ({"fields": [{"name": "colour"}]}, Reason.INVALID_FIELD, "colour is not a field"),
        ({"prices": None}, Reason.PRICE_MISSING, "spec.prices must be given"),
        ({"prices": []}, Reason.PRICE_MISSING, "perCallMicros: 0 makes it free"),
        (
            {"prices": [{"perSecond": [{"resolution": "720p", "micros": 1}]}]},
            Reason.PRICE_MISSING,
            "no price per second for 540p, 1080p, 2k, 4k",
        ),
        (
            {
                "prices": [
                    {"perSecond": [{"micros": 1}]},
                    {
                        "perSecond": [{"resolution": "720p", "micros": 1}],
                        "effectiveTime": "2030-01-01T00:00:00Z",
                    },
                ]
            },
            Reason.PRICE_MISSING,
            "540p",
        ),
        (
            {"prices": [{"perImageMicros": 1}]},
            Reason.INVALID_PRICE,
            "spec.prices is by image, but calls of reference_to_video are priced by call and by"
            " second",
        ),
        (
            {"prices": [{"perCallMicros": 1, "outputPerMillionMicros": 1}]},
            Reason.INVALID_PRICE,
            "by token",
        ),
        (
            {
                "fields": [{"name": "duration_seconds", "supported": False}],
                "prices": [{"perSecond": [{"micros": 1}]}],
            },
            Reason.INVALID_PRICE,
            "without duration_seconds",
        ),
        (
            {
                "prices": [
                    {"perCallMicros": 1, "effectiveTime": "2030-01-01T00:00:00Z"},
                    {"perCallMicros": 2, "effectiveTime": "2030-01-01T01:00:00+01:00"},
                ]
            },
            Reason.INVALID_PRICE,
            "at the same time",
        ),
        (
            {"prices": [{"perSecond": [{"micros": 62_500_000_001}]}]},
            Reason.INVALID_PRICE,
            "one call may cost 1000000.000016 USD",
        ),
    ],
)
def test_problem_says_what_to_mend(spec: dict[str, Any], reason: Reason, text: str) -> None:
    problem = check_model_object(make(**spec))
    assert problem is not None
    assert problem.reason is reason
    assert text in problem.message


@pytest.mark.parametrize(
    "spec",
    [
        {"prices": [{"perSecond": [{"resolution": r, "micros": 1} for r in RESOLUTIONS]}]},
        {
            "fields": [{"name": "output_resolution", "allowed": ["720p"]}],
            "prices": [{"perSecond": [{"resolution": "720p", "micros": 1}]}],
        },
        {
            "fields": [{"name": "output_resolution", "supported": False}],
            "prices": [{"perSecond": [{"micros": 1}]}],
        },
        {"prices": [{"perSecond": [{"micros": 62_500_000_000}]}]},
        {
            "fields": [{"name": "duration_seconds", "maximum": 10}],
            "prices": [{"perSecond": [{"micros": 100_000_000_000}]}],
        },
        {
            "fields": [{"name": "duration_seconds", "supported": False}],
            "prices": [{"perCallMicros": 10**12}],
        },
    ],
)
def test_price_is_needed_only_for_values_that_a_request_may_have(spec: dict[str, Any]) -> None:
    assert check_model_object(make(**spec)) is None


def test_model_without_resolutions_needs_the_star() -> None:
    problem = check_model_object(
        make(
            fields=[{"name": "output_resolution", "supported": False}],
            prices=[{"perSecond": [{"resolution": "720p", "micros": 1}]}],
        )
    )
    assert problem is not None
    assert problem.reason is Reason.PRICE_MISSING


def test_models_with_problems_are_kept_apart() -> None:
    catalog, _ = build_catalog(
        [make(), make("old", modelId="old", disabled=True), make("none", modelId="none", prices=[])]
    )
    assert sorted(obj.spec.model_id for obj in catalog.withdrawn) == ["none", "old"]


def test_bad_object_does_not_stand_in_a_good_ones_way() -> None:
    bad = make("a-bad", "2026-11-20T10:00:00Z", prices=None)
    catalog, problems = build_catalog([bad, make("good")])
    assert catalog.find_model("sim", "reference_to_video", "sim-q4") is not None
    assert set(problems) == {"a-bad"}
    assert catalog.withdrawn == ()


def test_older_of_two_withdrawn_models_with_one_id_is_listed() -> None:
    catalog, _ = build_catalog([make("a", disabled=True), make("b", disabled=True)])
    assert [obj.metadata.name for obj in catalog.withdrawn] == ["a"]
