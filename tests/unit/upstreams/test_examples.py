"""The providers that the documents and the local run show can be used as they stand."""

import re
from typing import Any

import pytest
import yaml

from gateway_core.api.model import ModelSpec
from gateway_core.api.provider import ProviderSpec
from gateway_core.providers.checks import check_provider
from gateway_core.providers.templates import Expression, prune_nulls
from tests.servers.guide import GUIDE, ROOT, read_example

INPUT = {
    "prompt": "A fox",
    "reference_image_urls": ["https://a.example/1.png"],
    "aspect_ratio": "16:9",
    "audio": False,
    "duration_seconds": 5,
    "output_resolution": "720p",
}


def read_local() -> dict[str, Any]:
    """The provider of the local run, its blank filled in."""
    text = (ROOT / "examples/local/provider.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text.replace("${PROVIDER_URL}", "http://127.0.0.1:9010"))
    return found


STUDIO, WORKSHOP = read_example("studio"), read_example("workshop")


@pytest.mark.parametrize(
    "resource", [STUDIO["GatewayProvider"], WORKSHOP["GatewayProvider"], read_local()]
)
def test_the_provider_has_no_problems(resource: dict[str, Any]) -> None:
    assert check_provider(ProviderSpec.model_validate(resource["spec"])) == []


@pytest.mark.parametrize("example", [STUDIO, WORKSHOP])
def test_the_guides_model_is_one(example: dict[str, Any]) -> None:
    model = ModelSpec.model_validate(example["GatewayModel"]["spec"])
    assert model.routes[0].provider_name == example["GatewayProvider"]["metadata"]["name"]
    secret = example["GatewayProvider"]["spec"]["credentialsSecretRef"]
    assert secret["name"] == example["Secret"]["metadata"]["name"]
    assert secret["key"] in example["Secret"]["stringData"]


def test_the_guides_request_is_the_one_its_api_takes() -> None:
    spec = ProviderSpec.model_validate(STUDIO["GatewayProvider"]["spec"])
    assert spec.http
    document = {"input": INPUT, "model": "cinema-2", "reference": "uid", "notifyUrl": None}
    assert prune_nulls(Expression(spec.http.submit.body).evaluate(document)) == {
        "model": "cinema-2",
        "text": "A fox",
        "images": [{"url": "https://a.example/1.png", "role": "reference"}],
        "ratio": "16:9",
        "size": {"height": 720},
        "length": "5s",
        "sound": False,
        "metadata": "uid",
    }


@pytest.mark.parametrize(
    ("notify_url", "sent"),
    [
        (None, {}),
        ("https://in.example/x", {"notify": {"uri": "https://in.example/x", "on": ["END"]}}),
    ],
)
def test_the_second_request_is_the_one_its_api_takes(
    notify_url: str | None, sent: dict[str, Any]
) -> None:
    spec = ProviderSpec.model_validate(WORKSHOP["GatewayProvider"]["spec"])
    assert spec.http
    document = {"input": INPUT, "model": "m", "reference": "uid", "notifyUrl": notify_url}
    assert prune_nulls(Expression(spec.http.submit.body).evaluate(document)) == {
        "script": {"text": "A fox", "stills": [{"uri": "https://a.example/1.png"}]},
        "frame": {"shape": "16:9", "lines": 720},
        "length_ms": 5000,
        "silent": True,
        "labels": {"ref": "uid"},
        **sent,
    }


def test_the_guides_expressions_are_jmespath() -> None:
    table = GUIDE.partition("| Purpose | Expression |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| [^|`]+ \| `([^`].*[^`])` \|$", table, re.MULTILINE)
    cells += re.findall(r"``([^`].*?[^`]`)``", table)
    assert len(cells) >= 6
    for cell in cells:
        Expression(cell.replace("\\|", "|"))


def test_every_field_of_a_provider_is_in_the_guide() -> None:
    def names(schema: dict[str, Any]) -> set[str]:
        found = set(schema.get("properties", {}))
        for definition in schema.get("$defs", {}).values():
            found |= set(definition.get("properties", {}))
        return found

    fields = names(ProviderSpec.model_json_schema(by_alias=True))
    missing = {field for field in fields if not re.search(rf"\b{field}\b", GUIDE)}
    assert missing == set()
