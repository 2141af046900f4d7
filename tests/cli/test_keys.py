"""`gatewayctl keys` and `guardrails` on a real API server."""

import base64
import threading
from datetime import UTC, datetime, timedelta

import pytest

from gateway_core.api.ids import IdMint, Ownership
from gateway_core.api.key import digest, parse_key
from gateway_core.api.usage import GatewayUsage


def make_key(gatewayctl, account, *options):
    """The document of a new key, its secret in it."""
    return gatewayctl("keys", "create", account, *options, "-o", "json").document


@pytest.fixture
def key(gatewayctl, account, pepper_secret):
    return make_key(gatewayctl, account, "--name", "CI")


def test_printed_secret_matches_the_digest_of_the_key(gatewayctl, read, account, pepper_secret):
    said = gatewayctl(
        *("keys", "create", account, "--name", "CI", "--limit", "25", "--window", "weekly"),
        *("--rpm", 30, "--cache", 60, "--model", "veo-*", "--model", "kling", "--provider", "sim"),
        *("--expires", "30d", "--note", "team=video"),
    )
    plaintext = said.out.strip()
    assert "! allowedModels: veo-*, kling are not models of this gateway" in said.err
    parsed = parse_key(plaintext)
    assert parsed is not None
    assert parsed.key_class == "Standard"
    name = said.err.split("key ")[1].split()[0]
    spec = read("gatewaykey", name)["spec"]
    (token,) = spec["tokens"]
    assert token["id"] == parsed.id
    assert (token["digest"], token["pepperVersion"]) == (digest(plaintext, pepper_secret), 2)
    assert spec["limit"] == {"micros": 25_000_000, "window": "weekly"}
    assert spec["allowedModels"] == ["veo-*", "kling"]
    assert (spec["allowedProviders"], spec["requestsPerMinute"]) == (["sim"], 30)
    assert spec["cacheSeconds"] == 60
    assert spec["metadata"] == {"team": "video"}
    expires = datetime.fromisoformat(spec["expirationTime"]) - datetime.now(UTC)
    assert timedelta(days=29, hours=23) < expires <= timedelta(days=30)
    assert "createdBy" not in spec
    # its id is one that the API takes for one of its own
    mint = IdMint(b"i" * 32)
    assert mint.check("key", account, name.replace("-", "_", 1)) is Ownership.MINTED
    for shown in (
        gatewayctl("keys", "list", "-a", account).out,
        gatewayctl("keys", "describe", name, "-o", "json").out,
    ):
        assert plaintext not in shown
        assert token["digest"] not in shown


def test_management_key_says_so(gatewayctl, read, account, pepper_secret):
    said = make_key(gatewayctl, account, "--management")
    assert said["secret"].startswith("mk-")
    assert (said["class"], read("gatewaykey", said["name"])["spec"]["class"]) == (
        "management",
        "Management",
    )


def test_key_can_be_found_by_its_id(gatewayctl, key):
    assert key["id"].startswith("key_")
    found = gatewayctl("keys", "describe", key["id"], "-o", "json").document
    assert found["name"] == key["name"]


def test_limits_are_set_and_cleared(gatewayctl, read, key):
    said = gatewayctl("keys", "limit", "set", key["name"], "12.50", "--window", "monthly")
    assert "may spend 12.50 monthly" in said.out
    assert read("gatewaykey", key["name"])["spec"]["limit"] == {
        "micros": 12_500_000,
        "window": "monthly",
    }
    gatewayctl("keys", "limit", "clear", key["name"])
    assert "limit" not in read("gatewaykey", key["name"])["spec"]
    gatewayctl("keys", "limit", "set", key["name"], "5", "--window", "fortnightly", code=2)


@pytest.mark.usefixtures("one_day")
def test_used_and_reset_are_counted_from_the_usage(gatewayctl, create, patch_status, account, key):
    now = datetime.now(UTC)
    minute = now.hour * 60 + now.minute
    entry = {
        "subject": f"key/{key['name']}",
        "chargedMicros": 300_000,
        "minutes": f"{minute}:300000",
        "hours": f"{now.hour}:300000",
        "lastTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
    }
    spec = {"accountName": account, "day": f"{now:%Y-%m-%d}"}
    status = {"chargedMicros": 300_000, "spent": [entry]}
    create(GatewayUsage, f"{account}-{now:%Y-%m-%d}", spec, status)
    gatewayctl("fund", account, "1")

    def show(window):
        gatewayctl("keys", "limit", "set", key["name"], "1", "--window", window)
        return gatewayctl("keys", "describe", key["name"], "-o", "json").document

    said = show("weekly")
    assert (said["limit"], said["used"], said["remaining"]) == ("1.00", "0.30", "0.70")
    monday = (now + timedelta(days=7 - now.weekday())).strftime("%Y-%m-%dT00:00:00Z")
    # a charge is not a use of the key: of that the API processes tell
    assert (said["resets_at"], said["last_used_at"]) == (monday, None)
    said = show("1h")
    leaves = datetime.fromisoformat(said["resets_at"]) - now.replace(second=0, microsecond=0)
    assert (said["used"], leaves) == ("0.30", timedelta(minutes=61))
    # lists tell what the operator has last seen
    patch_status("gatewaykey", key["name"], {"usedMicros": 300_000, "used": "0.30"})
    shown = gatewayctl("keys", "list", "-a", account).out
    assert "1.00 1h" in shown
    assert " 0.30 " in shown
    seen = gatewayctl("accounts", "describe", account, "-o", "json").document
    assert (seen["balance"], seen["charged"]) == ("0.70", "0.30")
    # a guardrail of which nothing was used
    made = gatewayctl("guardrails", "create", account, "--name", "G", "-o", "json").document
    gatewayctl("guardrails", "limit", "set", made["name"], "2", "--window", "1d")
    said = gatewayctl("guardrails", "describe", made["name"], "-o", "json").document
    assert (said["used"], said["remaining"], said["resets_at"]) == ("0.00", "2.00", None)


def test_key_is_disabled_enabled_and_revoked_for_good(gatewayctl, key):
    name = key["name"]

    def state():
        return gatewayctl("keys", "describe", name, "-o", "json").document["state"]

    gatewayctl("keys", "disable", name)
    assert state() == "disabled"
    gatewayctl("keys", "enable", name)
    assert state() == "active"
    gatewayctl("keys", "revoke", name, stdin="n\n", code=1)
    assert state() == "active"
    gatewayctl("keys", "revoke", name, "--yes")
    assert state() == "revoked"
    assert "revoked" in gatewayctl("keys", "rotate", name, code=4).err


def test_rotation_keeps_the_old_secret_for_the_overlap_only(gatewayctl, read, key, pepper_secret):
    name = key["name"]
    second = gatewayctl("keys", "rotate", name, "--overlap", "24h").out.strip()
    new, old = read("gatewaykey", name)["spec"]["tokens"]
    assert new["digest"] == digest(second, pepper_secret)
    assert "expirationTime" not in new
    assert old["digest"] == digest(key["secret"], pepper_secret)
    until = datetime.fromisoformat(old["expirationTime"]) - datetime.now(UTC)
    assert timedelta(hours=23, minutes=59) < until <= timedelta(hours=24)
    said = gatewayctl("keys", "describe", name, "-o", "json").document
    assert said["hint"] == new["hint"]
    assert said["old_secret_until"] == old["expirationTime"]
    third = gatewayctl("keys", "rotate", name, "-o", "json").document["secret"]
    (only,) = read("gatewaykey", name)["spec"]["tokens"]
    assert only["digest"] == digest(third, pepper_secret)
    gatewayctl("keys", "rotate", name, "--overlap", "8d", code=2)


def test_secret_name_leaves_the_key_to_the_operator(
    gatewayctl, read, patch_status, account, monkeypatch, control_plane
):
    monkeypatch.setattr("gateway_cli.admin.keys.PATIENCE_SECONDS", 0.2)
    said = gatewayctl("keys", "create", account, "--name", "Build Bot", "--secret-name", "bot-key")
    assert said.out == ""
    assert "has not written it into Secret bot-key yet" in said.refusal
    name = said.err.split("key ")[1].split()[0]
    assert name.startswith("key-build-bot-")
    spec = read("gatewaykey", name)["spec"]
    assert spec["secretName"] == "bot-key"
    assert "tokens" not in spec
    gatewayctl("keys", "rotate", name, "--overlap", "1h")
    spec = read("gatewaykey", name)["spec"]
    assert (spec["rotations"], spec["overlapSeconds"]) == (1, 3600)
    token = {"id": "abcdefgh", "digest": "0" * 64, "hint": "sk-abcd…wxyz"}
    patch_status("gatewaykey", name, {"tokens": [token], "rotations": 2})
    said = gatewayctl("keys", "rotate", name)
    assert "kubectl get secret bot-key" in said.err

    monkeypatch.setattr("gateway_cli.admin.keys.PATIENCE_SECONDS", 10.0)
    written = {"tokens": [token], "rotations": 3}
    operator = threading.Timer(1.0, patch_status, ("gatewaykey", name, written))
    operator.start()
    said = gatewayctl("keys", "rotate", name)
    operator.join()
    assert "kubectl get secret bot-key" in said.err


def test_restrictions_are_changed_and_cleared(gatewayctl, read, key):
    gatewayctl("keys", "set", key["name"], "--rpm", 5, "--model", "veo-*", "--expires", "1d")
    gatewayctl("keys", "set", key["name"], "--clear", "model", "--clear", "expires", "--rpm", 6)
    spec = read("gatewaykey", key["name"])["spec"]
    assert spec["requestsPerMinute"] == 6
    assert "allowedModels" not in spec
    assert "expirationTime" not in spec
    gatewayctl("keys", "set", key["name"], code=2)
    gatewayctl("keys", "set", key["name"], "--rpm", 5, "--clear", "rpm", code=2)


def test_missing_pepper_creates_no_key(gatewayctl, read, control_plane, account, tmp_path):
    said = gatewayctl("keys", "create", account, "--pepper-secret", "no-such", code=4)
    assert "no-such" in said.err
    gatewayctl("keys", "create", account, "--secrets-dir", tmp_path, code=4)
    for name in ("id-key", "pepper-1"):
        (tmp_path / name).write_bytes(base64.urlsafe_b64encode(b"z" * 32))
    said = gatewayctl("keys", "create", account, "--secrets-dir", tmp_path, "-o", "json").document
    token = read("gatewaykey", said["name"])["spec"]["tokens"][0]
    assert token["digest"] == digest(said["secret"], b"z" * 32)
    listed = gatewayctl("keys", "list", "-a", account, "-o", "json").document["items"]
    assert [item["name"] for item in listed] == [said["name"]]


def test_assign_takes_all_keys_or_none(gatewayctl, read, account, pepper_secret):
    keys = [make_key(gatewayctl, account)["name"] for _ in range(2)]
    made = gatewayctl(
        *("guardrails", "create", account, "--name", "Interns", "--limit", "50"),
        *("--window", "7d", "--deny-model", "veo-*", "-o", "json"),
    ).document
    name = made["name"]
    assert name.startswith("grd-interns-")
    assert (made["limit_micros"], made["window"]) == (50_000_000, "7d")
    gatewayctl("guardrails", "create", account, "--name", "Interns", code=4)
    gatewayctl("guardrails", "assign", name, keys[0], "key-none", code=4)
    assert "keyNames" not in read("gatewayguardrail", name)["spec"]
    for _ in range(2):
        gatewayctl("guardrails", "assign", made["id"], *keys)
    assert read("gatewayguardrail", name)["spec"]["keyNames"] == keys
    gatewayctl("guardrails", "unassign", name, keys[0])
    assert read("gatewayguardrail", name)["spec"]["keyNames"] == keys[1:]
    gatewayctl("guardrails", "limit", "set", name, "7", "--window", "daily")
    gatewayctl("guardrails", "set", name, "--clear", "model", "--rpm", 9)
    spec = read("gatewayguardrail", name)["spec"]
    assert (spec["limit"], spec["requestsPerMinute"]) == (
        {"micros": 7_000_000, "window": "daily"},
        9,
    )
    assert "deniedModels" not in spec
    gatewayctl("guardrails", "limit", "clear", name)
    assert name in gatewayctl("guardrails", "list", "-a", account).out
    assert "--force" in gatewayctl("guardrails", "delete", name, "--yes", code=4).refusal
    gatewayctl("guardrails", "delete", name, "--yes", "--force")
    gatewayctl("guardrails", "describe", name, code=4)


def test_key_of_another_account_is_not_assigned(gatewayctl, read, account, key, pepper_secret):
    gatewayctl("accounts", "create", f"{account}-b", "--owner-email", "olga@example.com")
    made = gatewayctl("guardrails", "create", f"{account}-b", "--name", "G", "-o", "json").document
    said = gatewayctl("guardrails", "assign", made["name"], key["name"], code=4)
    assert "not of account" in said.refusal


def test_ninth_guardrail_is_refused(gatewayctl, account, key):
    names = [
        gatewayctl("guardrails", "create", account, "--name", f"G{n}", "-o", "json").document[
            "name"
        ]
        for n in range(9)
    ]
    for name in names[:8]:
        gatewayctl("guardrails", "assign", name, key["name"])
    said = gatewayctl("guardrails", "assign", names[8], key["name"], code=4)
    assert "has 8 guardrails" in said.refusal
