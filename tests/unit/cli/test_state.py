"""The secrets of a local run, and the env file and first objects that are filled in with them."""

import base64
import stat
import subprocess
from pathlib import Path

import jmespath
import pytest

from gateway_cli.local.config import MODEL, SERVICE, LocalConfig, LocalRunError
from gateway_cli.local.state import (
    KEYS,
    Credentials,
    digest_key,
    ensure_credentials,
    ensure_shared_secrets,
    list_variables,
    read_first_objects,
    read_shared_secret,
    write_env_file,
)
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import IdMint, Ownership, name_to_id
from gateway_core.api.key import GatewayKey, digest, parse_key
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider


@pytest.fixture
def credentials(config: LocalConfig) -> Credentials:
    ensure_shared_secrets(config.secrets_directory)
    return ensure_credentials(config.directory / "credentials.json", config.secrets_directory)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_shared_secrets_are_32_bytes_kept_and_private(config: LocalConfig) -> None:
    folder = config.secrets_directory
    ensure_shared_secrets(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ensure_shared_secrets(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert set(before) == {"id-key", "pepper-1", "media-key"}
    for name in before:
        assert len(read_shared_secret(folder, name)) == 32
        assert _mode(folder / name) == 0o600


def test_malformed_secret_is_refused(config: LocalConfig) -> None:
    ensure_shared_secrets(config.secrets_directory)
    (config.secrets_directory / "pepper-1").write_text("c2hvcnQ=")
    with pytest.raises(ValueError, match="32 bytes"):
        read_shared_secret(config.secrets_directory, "pepper-1")


def test_keys_are_well_formed_and_their_objects_carry_the_accounts_tag(
    config: LocalConfig, credentials: Credentials
) -> None:
    mint = IdMint(read_shared_secret(config.secrets_directory, "id-key"))
    pepper = read_shared_secret(config.secrets_directory, "pepper-1")
    assert set(credentials.keys) == set(KEYS)
    for name, key in credentials.keys.items():
        account, key_class = KEYS[name]
        parsed = parse_key(key.plaintext)
        assert parsed is not None
        assert (parsed.id, parsed.key_class) == (key.id, key_class)
        assert mint.check("key", account, name_to_id(key.name)) is Ownership.MINTED
        assert digest_key(key, config.secrets_directory) == digest(key.plaintext, pepper)


def test_credentials_are_kept(config: LocalConfig, credentials: Credentials) -> None:
    path = config.directory / "credentials.json"
    assert ensure_credentials(path, config.secrets_directory) == credentials
    assert _mode(path) == 0o600


def test_keys_missing_from_an_older_run_are_added(
    config: LocalConfig, credentials: Credentials
) -> None:
    path = config.directory / "credentials.json"
    older = credentials.model_copy(update={"keys": {"demo": credentials.keys["demo"]}})
    path.write_text(older.model_dump_json())
    mended = ensure_credentials(path, config.secrets_directory)
    assert set(mended.keys) == set(KEYS)
    assert mended.keys["demo"] == credentials.keys["demo"]
    assert mended.webhook_secret == credentials.webhook_secret
    assert ensure_credentials(path, config.secrets_directory) == mended


def test_webhook_secret_is_in_the_standard_form(credentials: Credentials) -> None:
    prefix, _, value = credentials.webhook_secret.partition("_")
    assert prefix == "whsec"
    assert len(base64.b64decode(value, validate=True)) == 32


def test_shell_reads_the_env_file(config: LocalConfig, credentials: Credentials) -> None:
    variables = {**list_variables(config, credentials), "ODD": "a b'c\"$d"}
    write_env_file(config.env_file, variables)
    assert _mode(config.env_file) == 0o600
    script = f"set -a; . '{config.env_file}'; env -0"
    output = subprocess.run(["sh", "-c", script], capture_output=True, check=True, env={}).stdout
    read = dict(item.split("=", 1) for item in output.decode().split("\0") if item)
    assert {name: read[name] for name in variables} == variables


def test_env_file_has_the_documented_variables(
    config: LocalConfig, credentials: Credentials
) -> None:
    promised = {
        *("GATEWAY_BASE_URL", "GATEWAY_API_KEY", "GATEWAY_API_KEY_2", "GATEWAY_WEBHOOK_SECRET"),
        *("GATEWAY_MANAGEMENT_KEY", "GATEWAY_MEDIA_URL", "GATEWAY_SIMULATOR_URL", "KUBECONFIG"),
    }
    assert promised <= set(list_variables(config, credentials))


@pytest.fixture
def objects(config: LocalConfig, credentials: Credentials) -> dict[tuple[str, str], dict]:
    found = read_first_objects(config, credentials)
    assert "${" not in str(found)
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


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


def test_references_name_objects_of_the_run(objects: dict[tuple[str, str], dict]) -> None:
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


def test_providers_expressions_are_jmespath(objects: dict[tuple[str, str], dict]) -> None:
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


def test_unknown_placeholder_is_an_error(
    config: LocalConfig, credentials: Credentials, tmp_path: Path
) -> None:
    folder = tmp_path / "examples" / "local"
    folder.mkdir(parents=True)
    (folder / "odd.yaml").write_text("a: ${NOBODY_KNOWS}")
    elsewhere = LocalConfig(root=tmp_path, directory=config.directory)
    with pytest.raises(LocalRunError, match="NOBODY_KNOWS"):
        read_first_objects(elsewhere, credentials)
