"""The first objects of a local run: complete, and of the kinds that the CRDs are made from."""

import jmespath
import pytest

from gateway_cli.local.config import MODEL, SERVICE, LocalConfig
from gateway_cli.local.errors import LocalRunError
from gateway_cli.local.state import ensure_credentials, ensure_shared_secrets, read_first_objects
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider


@pytest.fixture
def objects(config: LocalConfig) -> dict[tuple[str, str], dict]:
    ensure_shared_secrets(config.secrets_directory)
    credentials = ensure_credentials(config.directory / "c.json", config.secrets_directory)
    documents = read_first_objects(config, credentials)
    assert "${" not in str(documents)
    return {(item["kind"], item["metadata"]["name"]): item for item in documents}


def test_every_object_is_of_its_kind(objects: dict[tuple[str, str], dict]) -> None:
    kinds = {
        kind.kind_name: kind
        for kind in (GatewayAccount, GatewayKey, GatewayModel, GatewayProvider, GatewayUser)
    }
    seen = {
        kinds[kind].model_validate(item).kind_name
        for (kind, _), item in objects.items()
        if kind in kinds
    }
    assert seen == set(kinds)


def test_references_lead_somewhere(objects: dict[tuple[str, str], dict]) -> None:
    for (kind, name), item in objects.items():
        spec = item.get("spec", {})
        if kind == "GatewayKey":
            assert ("GatewayAccount", spec["accountName"]) in objects
            member = objects["GatewayUser", spec["createdBy"]]["spec"]["memberships"]
            assert spec["accountName"] in [one["accountName"] for one in member]
            assert item["metadata"]["labels"]["modelgateway.dev/account"] == spec["accountName"]
        for field in ("webhookSecretRef", "credentialsSecretRef"):
            if field in spec:
                secret = objects["Secret", spec[field]["name"]]
                assert spec[field]["key"] in secret["stringData"], name
        for route in spec.get("routes", []):
            assert ("GatewayProvider", route["providerName"]) in objects
    model = objects["GatewayModel", MODEL]
    assert (model["spec"]["modelId"], model["spec"]["service"]) == (MODEL, SERVICE)


def test_the_providers_expressions_are_jmespath(objects: dict[tuple[str, str], dict]) -> None:
    http = objects["GatewayProvider", "simulated"]["spec"]["http"]
    submission = {"model": "q4", "reference": "uid", "input": {"prompt": "x", "audio": False}}
    body = jmespath.search(http["submit"]["body"], submission)
    assert (body["model"], body["prompt"], body["client_reference"]) == ("q4", "x", "uid")
    assert body["with_audio"] is False
    answer = {"job": {"state": "done", "outputs": [{"url": "u"}], "seconds": 5, "error": None}}
    poll = http["poll"]
    assert jmespath.search(poll["outputs"], answer) == ["u"]
    assert jmespath.search(poll["state"], answer) in poll["stateWords"]["succeeded"]
    assert jmespath.search(poll["errorMessage"], answer) is None
    assert jmespath.search(http["lookup"]["jobId"], {"jobs": []}) is None


def test_a_blank_that_nobody_fills_is_an_error(config: LocalConfig, tmp_path) -> None:
    folder = tmp_path / "examples" / "local"
    folder.mkdir(parents=True)
    (folder / "odd.yaml").write_text("a: ${NOBODY_KNOWS}")
    ensure_shared_secrets(config.secrets_directory)
    credentials = ensure_credentials(config.directory / "c.json", config.secrets_directory)
    elsewhere = LocalConfig(root=tmp_path, directory=config.directory)
    with pytest.raises(LocalRunError, match="NOBODY_KNOWS"):
        read_first_objects(elsewhere, credentials)
