"""`gatewayctl accounts`, `users` and `fund` on a real API server."""

import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import argon2
import pytest
from kubernetes.client.rest import RESTClientObject
from urllib3.exceptions import MaxRetryError, NewConnectionError

from gateway_cli.admin import webhooks
from gateway_cli.admin.funds import REFERENCES_ANNOTATION
from gateway_cli.cluster.client import APPLY_PATCH, MERGE_PATCH
from gateway_cli.cluster.errors import ClusterError
from gateway_core.accounts.records import project_user
from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import REMAINS_FINALIZER
from gateway_core.api.resource import skeleton
from gateway_core.api.times import format_time
from gateway_core.callbacks.signing import read_secret


def test_account_is_made_shown_changed_and_deleted(gatewayctl, read):
    gatewayctl(
        *("accounts", "create", "acme", "--owner-email", "ann@example.com"),
        *("--owner-name", "Ann", "--display-name", "Acme Inc.", "--paid", "12.50", "--rpm", "60"),
    )
    spec = read("gatewayaccount", "acme")["spec"]
    assert spec["funds"]["paidMicros"] == 12_500_000
    assert (spec["displayName"], spec["owner"]) == (
        "Acme Inc.",
        {"name": "Ann", "email": "ann@example.com"},
    )
    shown = gatewayctl("accounts", "list").out.splitlines()
    assert shown[0].split() == ["NAME", "DISPLAY", "BALANCE", "CHARGED", "RPM", "READY", "REASON"]
    assert any(line.startswith("acme ") and "Acme Inc." in line for line in shown)
    gatewayctl("accounts", "set", "acme", "--unlimited", "--rpm", 600, "--owner-email", "b@x.com")
    spec = read("gatewayaccount", "acme")["spec"]
    assert (spec["unlimited"], spec["requestsPerMinute"]) == (True, 600)
    assert spec["owner"] == {"name": "Ann", "email": "b@x.com"}
    gatewayctl("accounts", "set", "acme", "--no-unlimited", "--suspended")
    document = gatewayctl("accounts", "describe", "acme", "-o", "json").document
    assert (document["unlimited"], document["suspended"]) == (False, True)
    assert "Suspended" in gatewayctl("accounts", "describe", "acme").out
    gatewayctl("accounts", "resume", "acme")
    assert read("gatewayaccount", "acme")["spec"]["suspended"] is False
    gatewayctl("accounts", "suspend", "acme")
    assert read("gatewayaccount", "acme")["spec"]["suspended"] is True
    gatewayctl("accounts", "delete", "acme", stdin="n\n", code=1)
    gatewayctl("accounts", "delete", "acme", "--yes")
    assert "no GatewayAccount acme" in gatewayctl("accounts", "describe", "acme", code=4).err


def test_account_that_is_being_removed_says_what_is_left(
    gatewayctl, control_plane, account, patch_status, monkeypatch, tmp_path
):
    def set_finalizers(*names):
        patch = json.dumps({"metadata": {"finalizers": names}})
        arguments = ("gatewayaccount", account, "--type=merge", f"--patch={patch}")
        control_plane.kubectl("patch", *arguments)

    set_finalizers(REMAINS_FINALIZER)
    monkeypatch.setattr("gateway_cli.admin.objects.WAIT_SECONDS", 0.1)
    told = gatewayctl("accounts", "delete", account, "--yes", code=3)
    assert "is an operator running?" in told.refusal
    left = {
        "type": "Ready",
        "status": "False",
        "reason": "Removing",
        "message": "being removed; left: tasks (12), files (3)",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    patch_status("gatewayaccount", account, {"conditions": [left]})
    create = ("accounts", "create", account, "--owner-email", "ann@example.com")
    expected = f"another GatewayAccount {account} is still there: {left['message']}"
    assert expected in gatewayctl(*create, code=4).refusal
    path = tmp_path / "account.json"
    spec = {"displayName": "Acme", "owner": {"name": "Ann", "email": "ann@example.com"}}
    path.write_text(json.dumps(skeleton(GatewayAccount, account) | {"spec": spec}))
    assert expected in gatewayctl("apply", "-f", path, code=4).refusal
    assert left["message"] in gatewayctl("accounts", "delete", account, "--yes", code=3).refusal
    set_finalizers()
    gatewayctl(*create)
    assert "exists" in gatewayctl(*create, code=4).refusal
    gatewayctl("accounts", "delete", account, "--yes")


def test_funds_add_up_and_a_reference_adds_once(gatewayctl, read, account):
    assert "12.50 USD added" in gatewayctl("fund", account, "12.50").out
    gatewayctl("fund", account, "$0.000001")
    for _ in range(2):
        gatewayctl("fund", account, "100", "--reference", "invoice-7")
    said = gatewayctl("fund", account, "100", "--reference", "invoice-7", "-o", "json").document
    assert said == {
        "account": account,
        "added": "0.00",
        "added_micros": 0,
        "pot": "paid",
        "reference": "invoice-7",
        "already_added": True,
        "paid_micros": 112_500_001,
        "bonus_micros": 0,
    }
    gatewayctl("fund", account, "5", "--bonus", "--reference", "welcome")
    funds = read("gatewayaccount", account)["spec"]["funds"]
    assert funds == {"paidMicros": 112_500_001, "bonusMicros": 5_000_000}


@pytest.mark.parametrize(
    "changed", [("101", "--reference", "r"), ("100", "--reference", "r", "--bonus")]
)
def test_reference_belongs_to_one_payment(gatewayctl, read, account, changed):
    gatewayctl("fund", account, "100", "--reference", "r")
    assert (
        "reference r is that of 100.00 USD (paid)"
        in gatewayctl("fund", account, *changed, code=4).refusal
    )
    assert read("gatewayaccount", account)["spec"]["funds"] == {
        "paidMicros": 100_000_000,
        "bonusMicros": 0,
    }


@pytest.mark.full
def test_payments_at_once_are_all_added_and_a_repeated_one_once(
    control_plane, gatewayctl, read, account
):
    """Real processes side by side: each is a compare-and-set on what the others wrote."""

    def pay(reference):
        command = [sys.executable, "-m", "gateway_cli", "fund", account, "1", "--reference"]
        return subprocess.run(
            [*command, reference], env=os.environ, capture_output=True, text=True, check=False
        )

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(pay, ["a", "b", "c", "a"]))
    assert [process.returncode for process in done] == [0] * 4, [p.stderr for p in done]
    assert read("gatewayaccount", account)["spec"]["funds"]["paidMicros"] == 3_000_000


@pytest.mark.parametrize("amount", ["12,50", "0"])
def test_invalid_amount_adds_nothing(gatewayctl, read, account, amount):
    said = gatewayctl("fund", account, "--", amount, code=2)
    assert "12.50" in said.refusal or "must not be 0" in said.refusal
    assert "funds" not in read("gatewayaccount", account)["spec"]


def test_correction_takes_money_back_with_its_reason(gatewayctl, read, account):
    gatewayctl("fund", account, "12.50")
    assert "--reason" in gatewayctl("fund", account, "-2", code=2).refusal
    correction = ("fund", account, "-2.50", "--reason", "counted twice", "--reference", "r")
    assert "2.50 USD taken back" in gatewayctl(*correction).out
    assert "nothing is added" in gatewayctl(*correction).out
    obj = read("gatewayaccount", account)
    assert obj["spec"]["funds"]["paidMicros"] == 10_000_000
    last = json.loads(obj["metadata"]["annotations"][REFERENCES_ANNOTATION])[-1]
    assert (last["micros"], last["reason"]) == (-2_500_000, "counted twice")
    refused = gatewayctl("fund", account, "-10.01", "--reason", "all of it", code=4)
    assert "only 10.00 USD (paid) were ever added" in refused.refusal


def test_fund_names_another_field_manager(gatewayctl, control_plane, tmp_path, account):
    declared = {
        "apiVersion": "modelgateway.dev/v1alpha1",
        "kind": "GatewayAccount",
        "metadata": {"name": account},
        "spec": {"funds": {"paidMicros": 1_000_000}},
    }
    path = tmp_path / "account.json"
    path.write_text(json.dumps(declared))
    control_plane.kubectl("apply", "--server-side", "--field-manager=gitops", "-f", str(path))
    assert "gitops had applied the funds" in gatewayctl("fund", account, "1").refusal


def test_webhook_secret_rotation_keeps_both_secrets_for_a_day(gatewayctl, read, account):
    assert "rotate" in gatewayctl("accounts", "webhook-secret", "show", account, code=4).refusal
    first = gatewayctl("accounts", "webhook-secret", "rotate", account).out.strip()
    assert len(read_secret(first)) == 32
    assert gatewayctl("accounts", "webhook-secret", "show", account).out.strip() == first
    before = datetime.now(UTC)
    said = gatewayctl("accounts", "webhook-secret", "rotate", account, "-o", "json").document
    assert said["secret"] not in ("", first)
    spec = read("gatewayaccount", account)["spec"]
    assert spec["webhookSecretRef"] == {"name": said["secret_name"], "key": "secret"}
    previous = spec["previousWebhookSecretRef"]
    data = read("secret", previous["name"])["data"]
    assert base64.b64decode(data[previous["key"]]).decode() == first
    until = datetime.fromisoformat(previous["expirationTime"]) - before
    assert abs(until - timedelta(hours=24)) < timedelta(seconds=30)
    # a third would end the first before its day is over
    gatewayctl("accounts", "webhook-secret", "rotate", account, code=4)
    assert read("gatewayaccount", account)["spec"] == spec
    gatewayctl("accounts", "webhook-secret", "rotate", account, "--force")


def test_refused_rotation_leaves_no_secret(gatewayctl, control_plane, account, monkeypatch):
    looks = []

    def refuse_at_the_write(*_):
        looks.append("look")
        if len(looks) > 1:
            raise ClusterError("another rotation has begun")

    monkeypatch.setattr(webhooks, "_refuse_second", refuse_at_the_write)
    gatewayctl("accounts", "webhook-secret", "rotate", account, "--secret-name", "left", code=4)
    assert len(looks) == 2
    assert "left" not in control_plane.kubectl("get", "secrets")


def test_users_have_one_role_an_account(gatewayctl, read, account):
    gatewayctl("users", "create", "zoe", "--email", "zoe@example.com", "--account", account)
    gatewayctl("accounts", "create", "second", "--owner-email", "olga@example.com")
    gatewayctl("users", "grant", "zoe", "--account", "second", "--role", "owner")
    gatewayctl("users", "grant", "zoe", "--account", account, "--role", "viewer")
    said = gatewayctl("users", "describe", "zoe", "-o", "json").document
    assert said["memberships"] == {account: "viewer", "second": "owner"}
    shown = gatewayctl("users", "list", "--account", "second").out
    assert "zoe@example.com" in shown
    gatewayctl("users", "suspend", "zoe")
    assert read("gatewayuser", "zoe")["spec"]["suspended"] is True
    gatewayctl("users", "resume", "zoe")
    gatewayctl("users", "revoke", "zoe", "--account", account)
    assert "no member" in gatewayctl("users", "revoke", "zoe", "--account", account, code=4).err
    said = gatewayctl("users", "describe", "zoe", "-o", "json").document
    assert (said["memberships"], said["suspended"]) == ({"second": "owner"}, False)
    rows = project_user(read("gatewayuser", "zoe")).list_changes(account)
    assert [(row.by, row.text) for row in rows] == [
        ("client/gatewayctl", "role viewer given"),
        ("client/gatewayctl", "removed as viewer"),
    ]
    assert "no users" in gatewayctl("users", "list", "--account", account).err
    gatewayctl("users", "grant", "zoe", "--account", "none", "--role", "admin", code=4)
    gatewayctl("users", "delete", "zoe", "--yes")


def describe_account(name, **funds):
    """A file's account with those funds, or with none."""
    spec = {"displayName": "Acme", "owner": {"name": "Ann", "email": "ann@example.com"}}
    return json.dumps(
        {
            "apiVersion": "modelgateway.dev/v1alpha1",
            "kind": "GatewayAccount",
            "metadata": {"name": name},
            "spec": {**spec, **({"funds": funds} if funds else {})},
        }
    )


def test_apply_keeps_funds_paid_in_since(gatewayctl, read):
    name = f"acct-{secrets.token_hex(4)}"

    def apply(*options, **funds):
        said = gatewayctl("apply", "-f", "-", *options, stdin=describe_account(name, **funds))
        return read("gatewayaccount", name)["spec"]["funds"], said.refusal

    first = {"paidMicros": 100_000_000, "bonusMicros": 0}
    assert apply(**first) == (first, "")
    assert "had applied" not in gatewayctl("fund", name, "20").refusal
    gatewayctl("fund", name, "5", "--bonus")
    more = {"paidMicros": 120_000_000, "bonusMicros": 5_000_000}
    for _ in range(2):
        funds, said = apply(**first)
        assert funds == more
        assert "paidMicros of 120.00 USD" in said
        assert "names 100.00 USD" in said
    # the file that names funds no more would take its own figures with it
    funds, said = apply()
    assert funds == more
    assert "names none" in said
    gatewayctl("fund", name, "1")
    assert apply(paidMicros=200_000_000)[0] == {**more, "paidMicros": 200_000_000}
    assert apply("--lower-funds", **first) == (first, "")


@pytest.mark.parametrize(
    ("command", "content_type", "paid"),
    [(("apply", "-f", "-"), APPLY_PATCH, 15), (("fund", "{account}", "1"), MERGE_PATCH, 16)],
    ids=["apply", "fund"],
)
def test_funds_added_concurrently_are_kept(
    gatewayctl, read, monkeypatch, account, command, content_type, paid
):
    """Two other payments go in between what the command reads and what it writes."""
    request, payments = RESTClientObject.request, [7, 8]

    def pay_before(self, method, url, **options):
        if options["headers"].get("Content-Type") == content_type and payments:
            identity = {"Authorization": options["headers"]["Authorization"]}
            present = request(self, "GET", url, headers=identity, _preload_content=False).json()
            funds = present["spec"].get("funds") or {}
            more = funds.get("paidMicros", 0) + payments.pop() * 1_000_000
            patch = {"spec": {"funds": {"paidMicros": more}}}
            request(
                self, "PATCH", url, headers={**identity, "Content-Type": MERGE_PATCH}, body=patch
            )
        return request(self, method, url, **options)

    monkeypatch.setattr(RESTClientObject, "request", pay_before)
    words = [word.format(account=account) for word in command]
    gatewayctl(*words, stdin=describe_account(account, paidMicros=1))
    assert not payments
    assert read("gatewayaccount", account)["spec"]["funds"]["paidMicros"] == paid * 1_000_000


@pytest.mark.parametrize(("fate", "paid"), [("done", 12), ("not done", 7), ("504", 12)])
def test_payment_of_unknown_outcome_is_added_once_by_its_reference(
    gatewayctl, read, account, lose_answers, fate, paid
):
    gatewayctl("fund", account, "7")
    lose_answers("PATCH", account, fate)
    said = gatewayctl("fund", account, "5", code=5)
    assert read("gatewayaccount", account)["spec"]["funds"]["paidMicros"] == paid * 1_000_000
    reference = said.err.splitlines()[0].removeprefix("reference ")
    assert "not known whether the 5.00 USD were added" in said.refusal
    assert f"`--reference {reference}`" in said.refusal
    for _ in range(2):
        gatewayctl("fund", account, "5", "--reference", reference)
        assert read("gatewayaccount", account)["spec"]["funds"]["paidMicros"] == 12_000_000


def test_unreachable_api_server_is_no_unknown_outcome(gatewayctl, monkeypatch, account):
    def refuse(self, method, url, **options):
        raise MaxRetryError(None, url, NewConnectionError(None, "refused"))

    monkeypatch.setattr(RESTClientObject, "request", refuse)
    assert "not known" not in gatewayctl("fund", account, "5", code=5).refusal


def test_references_are_kept_for_90_days_and_a_full_annotation_refuses_payments(
    gatewayctl, control_plane, read, account, monkeypatch
):
    def note(count, age):
        time = format_time(datetime.now(UTC) - age)
        noted = [
            {"reference": f"{i:0128d}", "pot": "paid", "micros": 1, "time": time}
            for i in range(count)
        ]
        path = f"{REFERENCES_ANNOTATION}={json.dumps(noted)}"
        control_plane.kubectl("annotate", "--overwrite", "gatewayaccount", account, path)

    full = 20
    monkeypatch.setattr("gateway_cli.admin.funds.MOST_BYTES", full * 200)
    note(full, timedelta(days=89))
    said = gatewayctl("fund", account, "5", "--reference", "n" * 128, code=4)
    assert "no room for another before" in said.refusal
    assert "funds" not in read("gatewayaccount", account)["spec"]
    gatewayctl("fund", account, "0.000001", "--reference", f"{7:0128d}")
    assert "funds" not in read("gatewayaccount", account)["spec"]
    note(full, timedelta(days=91))
    gatewayctl("fund", account, "5", "--reference", "n")
    kept = json.loads(
        read("gatewayaccount", account)["metadata"]["annotations"][REFERENCES_ANNOTATION]
    )
    assert [entry["reference"] for entry in kept] == ["n"]


@pytest.mark.parametrize("fates", [("done",), ("not done",), ("504",), ("not done", "504")])
def test_rotation_with_lost_answer_keeps_the_signing_secret(
    gatewayctl, control_plane, read, account, lose_answers, fates
):
    gatewayctl("accounts", "webhook-secret", "rotate", account)
    lost = lose_answers("PATCH", account, *fates)
    said = gatewayctl(
        "accounts", "webhook-secret", "rotate", account, code=0 if len(fates) < 2 else 5
    )
    assert not lost
    ref = read("gatewayaccount", account)["spec"]["webhookSecretRef"]
    value = base64.b64decode(read("secret", ref["name"])["data"][ref["key"]]).decode()
    if len(fates) < 2:
        assert said.out.strip() == value
    else:
        assert f"the new Secret {ref['name']}, which is left" in said.refusal
    assert gatewayctl("accounts", "webhook-secret", "show", account).out.strip() == value


def test_delete_prints_a_document_for_scripts(gatewayctl, account):
    gatewayctl("users", "create", "del", "--email", "d@example.com", "--account", account)
    for noun, name in (("users", "del"), ("accounts", account)):
        said = gatewayctl(noun, "delete", name, "--yes", "-o", "json").document
        assert said == {"name": name, "deleted": True}


def test_password_is_generated_shown_once_and_kept_as_a_hash(gatewayctl, read):
    gatewayctl("users", "create", "ola", "--email", "ola@example.com")
    first = gatewayctl("users", "reset-password", "ola")
    stored = read("gatewayuser", "ola")["spec"]["passwordHash"]
    password = first.out.strip()
    assert argon2.PasswordHasher().verify(stored, password)
    assert len(password) == 29
    said = gatewayctl("users", "reset-password", "ola", "-o", "json").document
    assert said["password"] != password
    assert "argon2" not in gatewayctl("users", "describe", "ola", "-o", "json").out
    assert "no GatewayUser nobody" in gatewayctl("users", "reset-password", "nobody", code=4).err


def test_commands_say_what_they_did_in_the_words_of_kubectl(gatewayctl):
    account, user = (f"{noun}-{secrets.token_hex(4)}" for noun in ("acct", "user"))
    owner = ("--owner-email", "ann@example.com")
    said = gatewayctl("accounts", "create", account, *owner).out
    assert said == f"✓ account {account} created\n"
    rename = ("accounts", "set", account, "--display-name", "Acme")
    assert gatewayctl(*rename).out == f"✓ account {account} updated\n"
    assert gatewayctl(*rename).out == f"✓ account {account} unchanged\n"
    gatewayctl("users", "create", user, "--email", f"{user}@example.com")
    grant = ("users", "grant", user, "--account", account, "--role", "member")
    detail = f"member of account {account}"
    assert gatewayctl(*grant).out == f"✓ user {user} updated: {detail}\n"
    assert gatewayctl(*grant).out == f"✓ user {user} unchanged: {detail}\n"
    assert gatewayctl("users", "suspend", user).out == f"✓ user {user} suspended\n"
    assert gatewayctl("users", "suspend", user).out == f"✓ user {user} unchanged\n"
    assert gatewayctl("users", "delete", user, "--yes").out == f"✓ user {user} deleted\n"


def test_link_for_a_password_is_shown_once_and_kept_as_a_digest(gatewayctl, read):
    gatewayctl("users", "create", "lia", "--email", "lia@example.com")
    command = ("users", "password-link", "lia", "--base-url", "https://gw.example.com/")
    first = gatewayctl(*command)
    address, _, token = first.out.strip().partition("#")
    assert address == "https://gw.example.com/password"
    issued = read("gatewayuser", "lia")["spec"]["passwordLink"]
    assert issued["digest"] == hashlib.sha256(token.partition(".")[2].encode()).hexdigest()
    assert f"until {issued['expirationTime']}" in first.err
    said = gatewayctl(*command, "-o", "json").document
    assert said["link"] != first.out.strip()
    assert (
        said["expires_at"] == read("gatewayuser", "lia")["spec"]["passwordLink"]["expirationTime"]
    )
    gatewayctl("users", "reset-password", "lia")
    assert "passwordLink" not in read("gatewayuser", "lia")["spec"]
    assert "no address" in gatewayctl(*command[:4], "gw.example.com", code=2).err
    assert "no GatewayUser" in gatewayctl(*command[:2], "nobody", *command[3:], code=4).err
