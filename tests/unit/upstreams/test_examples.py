"""The providers that the documents and the local run show can be used as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway_core.contract.model import ModelSpec
from gateway_core.contract.provider import ProviderSpec
from gateway_core.domain.expressions import Expression, prune_nulls
from gateway_core.domain.providers import check_provider

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/providers.md").read_text()
INPUT = {
    "prompt": "A fox",
    "reference_image_urls": ["https://a.example/1.png"],
    "aspect_ratio": "16:9",
    "audio": False,
    "duration_seconds": 5,
    "output_resolution": "720p",
}


def read_guide() -> dict[str, dict[str, Any]]:
    """The objects of the worked example by kind."""
    (example,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    return {item["kind"]: item for item in yaml.safe_load_all(example)}


def read_local() -> dict[str, Any]:
    """The provider of the local run, its blank filled in."""
    text = (ROOT / "examples/local/provider.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text.replace("${PROVIDER_URL}", "http://127.0.0.1:9010"))
    return found


@pytest.mark.parametrize("resource", [read_guide()["GatewayProvider"], read_local()])
def test_the_provider_has_no_problems(resource: dict[str, Any]) -> None:
    assert check_provider(ProviderSpec.model_validate(resource["spec"])) == []


def test_the_guides_model_is_one() -> None:
    model = ModelSpec.model_validate(read_guide()["GatewayModel"]["spec"])
    assert model.routes[0].provider_name == read_guide()["GatewayProvider"]["metadata"]["name"]


def test_the_guides_request_is_the_one_its_api_takes() -> None:
    spec = ProviderSpec.model_validate(read_guide()["GatewayProvider"]["spec"])
    assert spec.http
    document = {"input": INPUT, "model": "cinema-2", "reference": "uid"}
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


def test_the_guides_expressions_are_jmespath() -> None:
    table = GUIDE.partition("| Wanted | Expression |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| [^|`]+ \| `([^`].*[^`])` \|$", table, re.MULTILINE)
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
