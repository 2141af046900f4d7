"""gatewayctl doctor, status and top on the whole gateway as it runs on this machine."""

import re

from gateway_cli.inspection.processes import PROCESSES
from gateway_cli.local.processes import LISTENERS
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import skeleton
from tests.servers.tenants import unique
from tests.servers.world import wait_for


def find_check(said, name):
    [check] = [check for check in said.document["checks"] if check["name"] == name]
    return check


async def test_doctor_finds_a_sound_run_and_a_provider_without_its_secret(
    gatewayctl, world, ended, client
):
    # of the whole run; what tests beside this one do to their providers is found, too
    said = await gatewayctl("doctor", "-o", "json", code=None)
    states = {check["name"]: check["state"] for check in said.document["checks"]}
    for name in ("local run", "control plane", "definitions", "processes", "inside"):
        assert states[name] == "ok", said.out
    assert states["API from here"] == "ok", said.out
    summary = find_check(said, "API from here")["summary"]
    assert "written to the store, read again and deleted" in summary
    looked_into = set(PROCESSES) & set(LISTENERS)
    count = f"{len(looked_into)} of {len(looked_into)}"
    assert find_check(said, "inside")["summary"] == f"metrics of {count} processes"

    name = unique("prov")
    provider = world.read("gatewayprovider", "simulated")
    secret = {"name": "there-is-none", "key": "token"}
    spec = {**provider["spec"], "credentialsSecretRef": secret}
    world.apply(skeleton(GatewayProvider, name) | {"spec": spec})
    try:

        def is_seen():
            status = world.read("gatewayprovider", name).get("status") or {}
            return bool(status.get("conditions"))

        await wait_for(is_seen, what="a look of the operator at the provider")
        said = await gatewayctl("doctor", "-o", "json", code=1)
        # providers of other tests may be without a Secret or a server now
        findings = find_check(said, "providers")["findings"]
        [finding] = [each for each in findings if each["subject"] == f"provider {name}"]
        assert "there-is-none" in finding["text"]
        assert "create the Secret" in finding["action"]
        shown = (await gatewayctl("doctor", code=1)).out
        assert f"✗ provider {name}: not Ready: SecretNotFound" in shown
    finally:
        world.run.kubectl("delete", "gatewayprovider", name)


async def test_status_counts_objects_processes_and_calls_of_today(gatewayctl, ended):
    document = (await gatewayctl("status", "-o", "json")).document
    assert document["providers"]["ready"] >= 1
    assert {p["component"] for p in document["processes"]} >= {"api", "media", "operator", "redis"}
    assert all(process["ready"] for process in document["processes"])
    assert "calls" in (await gatewayctl("status")).out


ELSEWHERE = [
    *("status", "top", "usage", "accounts", "users", "keys", "guardrails", "models", "prompts"),
    *("clients", "grants", "providers", "tasks list", "tasks list --watch"),
    *(
        "accounts describe acme",
        "models describe veo-3",
        "providers test acme",
        "fund acme 10 --reference one",
    ),
    *(
        "keys create acme",
        "keys revoke --yes task-1",
        "accounts create acme --owner-email a@b.example",
        "record save nowhere.jsonl",
    ),
]
"""Commands that find nothing in a namespace without a gateway."""


async def test_namespace_without_a_gateway_is_refused_with_those_that_have_one(world, gatewayctl):
    own = world.config.namespace
    for command in ELSEWHERE:
        refused = await gatewayctl(*command.split(), "-n", "nosuch", code=4)
        said, _, others = " ".join(refused.err.split()).partition("; these namespaces have one: ")
        assert re.fullmatch(
            "✗ there is no (gateway in the|Gateway.* in) namespace nosuch(, and no gateway)?", said
        ), command
        # other worlds of this control plane are gateways too
        assert own in others.split(", "), command
    checks = (await gatewayctl("doctor", "-n", "nosuch", "-o", "json", code=1)).document["checks"]
    found = next(check for check in checks if check["name"] == "gateway")
    assert "nosuch" in found["findings"][0]["text"]
