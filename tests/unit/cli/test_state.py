"""The secrets of a local run, and the file that tells clients of them."""

import base64
import stat
import subprocess
from pathlib import Path

import pytest

from gateway_cli.local.config import LocalConfig
from gateway_cli.local.state import (
    KEYS,
    Credentials,
    digest_key,
    ensure_credentials,
    ensure_shared_secrets,
    list_variables,
    read_shared_secret,
    write_env_file,
)
from gateway_core.api.ids import IdMint, Ownership, name_to_id
from gateway_core.api.key import digest, parse_key


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


def test_a_spoilt_secret_is_refused(config: LocalConfig) -> None:
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


def test_a_key_that_an_older_run_did_not_make_is_added(
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


def test_the_webhook_secret_is_in_the_standard_form(credentials: Credentials) -> None:
    prefix, _, value = credentials.webhook_secret.partition("_")
    assert prefix == "whsec"
    assert len(base64.b64decode(value, validate=True)) == 32


def test_a_shell_reads_the_env_file_as_it_was_meant(
    config: LocalConfig, credentials: Credentials
) -> None:
    variables = {**list_variables(config, credentials), "ODD": "a b'c\"$d"}
    write_env_file(config.env_file, variables)
    assert _mode(config.env_file) == 0o600
    script = f"set -a; . '{config.env_file}'; env -0"
    output = subprocess.run(["sh", "-c", script], capture_output=True, check=True, env={}).stdout
    read = dict(item.split("=", 1) for item in output.decode().split("\0") if item)
    assert {name: read[name] for name in variables} == variables


def test_the_env_file_has_what_clients_are_promised(
    config: LocalConfig, credentials: Credentials
) -> None:
    promised = {
        *("GATEWAY_BASE_URL", "GATEWAY_API_KEY", "GATEWAY_API_KEY_2", "GATEWAY_WEBHOOK_SECRET"),
        *("GATEWAY_MANAGEMENT_KEY", "GATEWAY_MEDIA_URL", "GATEWAY_SIMULATOR_URL", "KUBECONFIG"),
    }
    assert promised <= set(list_variables(config, credentials))
