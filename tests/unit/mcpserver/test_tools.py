"""Tools that read: models, prices, prompts, balance, on fakes."""

import jsonschema
import pytest

from gateway_mcpserver import app
from tests.unit.apiserver.gateway import MODEL, call
from tests.unit.mcpserver.gateway import McpGateway


@pytest.fixture
def gateway():
    return McpGateway()


async def read(gateway, tool, arguments=None, **more):
    """The structured content, which fits the schema that is listed."""
    result = await gateway.use(tool, arguments, **more)
    assert result["isError"] is False, result
    listed = (await gateway.ask("tools/list")).json["result"]["tools"]
    (described,) = [each for each in listed if each["name"] == tool]
    jsonschema.validate(result["structuredContent"], described["outputSchema"])
    return result["structuredContent"]


async def test_models_are_listed_with_their_required_params(gateway):
    assert await read(gateway, "list_models") == {
        "count": 1,
        "models": [
            {
                "model": MODEL,
                "service": "sim",
                "action": "reference_to_video",
                "modality": "video",
                "required_fields": ["prompt", "reference_image_urls"],
            }
        ],
    }


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"modality": "video"}, 1),
        ({"modality": "image"}, 0),
        ({"service": "sim", "action": "reference_to_video"}, 1),
        ({"service": "other"}, 0),
        ({"modality": None}, 1),
    ],
)
async def test_models_are_filtered(gateway, filters, count):
    assert (await read(gateway, "list_models", filters))["count"] == count


async def test_models_that_the_key_may_not_call_are_not_shown(gateway):
    key = gateway.put_key("demo", allowedModels=["other"])
    assert (await read(gateway, "list_models", key=key))["count"] == 0
    assert (await gateway.use("get_model_info", {"model": MODEL}, key=key))["isError"] is True
    assert await read(gateway, "list_actions", key=key) == {"groups": []}


async def test_model_is_described_as_its_rules_narrow_it(gateway):
    rules = [
        {"name": "audio", "supported": False},
        {"name": "duration_seconds", "maximum": 8, "default": "4"},
        {"name": "output_resolution", "allowed": ["720p"]},
    ]
    gateway.put_model("narrow", fields=rules)
    info = await read(gateway, "get_model_info", {"model": "narrow"})
    fields = {field["name"]: field for field in info["fields"]}
    assert "audio" not in fields
    assert "model" not in fields
    assert fields["prompt"] == {
        "name": "prompt",
        "type": "string",
        "description": "What the video shows.",
        "required": True,
        "default": None,
        "enum": None,
        "min": 1,
        "max": 20000,
    }
    seconds = fields["duration_seconds"]
    assert (seconds["min"], seconds["max"], seconds["default"]) == (3, 8, 4)
    assert fields["output_resolution"]["enum"] == ["720p"]
    assert info["price"]["unit_price_micros"] == 100_000
    assert "ambiguous" not in info


async def test_id_of_several_models_is_ambiguous(gateway):
    gateway.kube.put(
        "gatewaymodels",
        {
            "metadata": {"name": "second"},
            "spec": {
                "modelId": MODEL,
                "service": "other",
                "action": "reference_to_video",
                "routes": [{"name": "main", "providerName": "p", "upstreamModel": "q"}],
                "prices": [{"perCallMicros": 5}],
            },
        },
    )
    info = await read(gateway, "get_model_info", {"model": MODEL})
    assert (info["service"], info["ambiguous"]) == ("other", True)
    assert [match["service"] for match in info["matches"]] == ["other", "sim"]
    info = await read(gateway, "get_model_info", {"model": MODEL, "service": "sim"})
    assert info["service"] == "sim"
    assert "matches" not in info


async def test_prices_are_those_of_the_price_list(gateway):
    given = {"service": "sim", "action": "reference_to_video"}
    priced = await read(gateway, "check_pricing", given)
    listed = (await call(gateway.app, "GET", "/api/v1/price_schedules")).json
    assert priced["supported"] is True
    assert priced["model"] == MODEL
    assert [priced["price"]] == listed["price_schedules"]
    gateway.put_model("second")
    several = await read(gateway, "check_pricing", given)
    assert several["price"] is None
    assert [price["model"] for price in several["prices"]] == ["second", MODEL]
    unknown = await read(gateway, "check_pricing", {**given, "model": "none"})
    assert (unknown["supported"], unknown["price"]) == (False, None)


async def test_balance_is_that_of_rest(gateway):
    headers = [("authorization", f"Bearer {gateway.key}")]
    by_rest = await call(gateway.app, "GET", "/api/v1/me/balance", headers=headers)
    assert await read(gateway, "check_balance") == by_rest.json


def put_prompt(gateway, name, **spec):
    base = {
        "title": name.title(),
        "prompt": f"A {name} at dusk",
        "service": "sim",
        "action": "reference_to_video",
    }
    gateway.kube.put("gatewayprompts", {"metadata": {"name": name}, "spec": {**base, **spec}})


async def test_prompts_are_searched(gateway):
    put_prompt(gateway, "lighthouse", tags=["sea", "evening"], category="landscape")
    put_prompt(gateway, "forest", tags=["evening"], modelId=MODEL, featured=True)
    put_prompt(gateway, "city", prompt="STRASSE bei Nacht")
    found = await read(gateway, "search_prompts")
    assert found["pagination"] == {"page": 1, "per_page": 20, "total": 3}
    assert [prompt["id"] for prompt in found["prompts"]] == ["forest", "city", "lighthouse"]
    assert found["prompts"][2] == {
        "id": "lighthouse",
        "title": "Lighthouse",
        "prompt": "A lighthouse at dusk",
        "model": None,
        "service": "sim",
        "action": "reference_to_video",
        "modality": "video",
        "category": "landscape",
        "tags": ["sea", "evening"],
        "featured": False,
    }
    for filters, names in (
        ({"tags": ["evening"]}, ["forest", "lighthouse"]),
        ({"tags": ["evening", "sea"]}, ["lighthouse"]),
        ({"q": "straße"}, ["city"]),
        ({"q": "SEA"}, ["lighthouse"]),
        ({"model": MODEL}, ["forest"]),
        ({"featured": False}, ["city", "lighthouse"]),
        ({"category": "landscape"}, ["lighthouse"]),
        ({"modality": "audio"}, []),
        ({"page": 2, "per_page": 2}, ["lighthouse"]),
        ({"page": 9.0}, []),
    ):
        found = await read(gateway, "search_prompts", filters)
        assert [prompt["id"] for prompt in found["prompts"]] == names, filters


@pytest.mark.parametrize(
    "bad", [{"page": 0}, {"per_page": 101}, {"page": "1"}, {"tags": "sea"}, {"modality": "text"}]
)
async def test_bad_filters_are_named(gateway, bad):
    assert (await gateway.use("search_prompts", bad))["isError"] is True


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("list_models", "service"),
        ("list_models", "action"),
        ("get_model_info", "model"),
        ("check_pricing", "service"),
        ("check_pricing", "model"),
        ("search_prompts", "category"),
        ("search_prompts", "model"),
        ("create_task", "action"),
        ("get_task", "task_id"),
    ],
)
async def test_long_names_are_not_repeated_in_results(gateway, tool, name):
    result = await gateway.use(tool, {name: "x" * 513})
    assert result["isError"] is True
    text = result["content"][0]["text"]
    assert f"{name}: must have at most 512 characters." in text
    assert len(text) < 1000


async def test_calls_of_reading_tools_have_a_rate_for_each_account(gateway, monkeypatch):
    monkeypatch.setattr(app, "_READS_PER_MINUTE", 2)
    gateway = McpGateway()
    for _ in range(2):
        assert (await gateway.use("list_actions"))["isError"] is False
    refused = await gateway.use("check_balance")
    assert refused["isError"] is True
    assert "Try again in" in refused["content"][0]["text"]
    assert (await gateway.use("list_actions", key=gateway.other_key))["isError"] is False
    assert (await gateway.create())["isError"] is False
